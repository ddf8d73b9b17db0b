"""Log records that belong to spans, series of metrics."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables with their indexes."""
    op.execute("""
        CREATE TABLE log_records (
            project TEXT COLLATE "C" NOT NULL,
            owner TEXT COLLATE "C" NOT NULL,
            span_id TEXT COLLATE "C" NOT NULL,
            record TEXT COLLATE "C" NOT NULL,
            at BIGINT NOT NULL,
            "user" TEXT COLLATE "C" NOT NULL,
            content TEXT COLLATE "C" NOT NULL,
            expires_at BIGINT NOT NULL,
            PRIMARY KEY (project, owner, span_id, record)
        )
    """)
    op.execute("CREATE INDEX ix_log_records_expires_at ON log_records (expires_at)")
    op.execute("""
        CREATE TABLE metric_series (
            project TEXT COLLATE "C" NOT NULL,
            series TEXT COLLATE "C" NOT NULL,
            name TEXT COLLATE "C" NOT NULL,
            kind TEXT COLLATE "C" NOT NULL,
            unit TEXT COLLATE "C" NOT NULL,
            description TEXT COLLATE "C" NOT NULL,
            attributes TEXT COLLATE "C" NOT NULL,
            first_at BIGINT NOT NULL,
            last_at BIGINT NOT NULL,
            PRIMARY KEY (project, series)
        )
    """)
    op.execute("CREATE INDEX metric_series_by_name ON metric_series (project, name)")
    op.execute("""
        CREATE TABLE metric_points (
            project TEXT COLLATE "C" NOT NULL,
            series TEXT COLLATE "C" NOT NULL,
            at BIGINT NOT NULL,
            count BIGINT NOT NULL,
            total FLOAT NOT NULL,
            low FLOAT,
            high FLOAT,
            bins TEXT COLLATE "C",
            PRIMARY KEY (project, series, at)
        )
    """)
    op.execute("CREATE INDEX metric_points_by_time ON metric_points (project, at)")
    op.execute("""
        CREATE TABLE metric_streams (
            project TEXT COLLATE "C" NOT NULL,
            stream TEXT COLLATE "C" NOT NULL,
            state TEXT COLLATE "C" NOT NULL,
            seen_at BIGINT NOT NULL,
            PRIMARY KEY (project, stream)
        )
    """)
    op.execute("CREATE INDEX metric_streams_by_time ON metric_streams (seen_at)")
