"""What clients of Tinker's protocol make."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the tables with their indexes."""
    op.execute("""
        CREATE TABLE tinker_sessions (
            id TEXT COLLATE "C" NOT NULL,
            entity TEXT COLLATE "C" NOT NULL,
            project TEXT COLLATE "C" NOT NULL,
            key_id TEXT COLLATE "C",
            about TEXT COLLATE "C" NOT NULL,
            ending TEXT COLLATE "C",
            created_at BIGINT NOT NULL,
            created_by TEXT COLLATE "C" NOT NULL,
            seen_at BIGINT NOT NULL,
            PRIMARY KEY (id)
        )
    """)
    op.execute("""
        CREATE TABLE tinker_runs (
            id TEXT COLLATE "C" NOT NULL,
            model_id TEXT COLLATE "C" NOT NULL,
            session_id TEXT COLLATE "C" NOT NULL,
            lora TEXT COLLATE "C" NOT NULL,
            user_metadata TEXT COLLATE "C",
            next_seq BIGINT NOT NULL,
            applied BIGINT NOT NULL,
            kept BIGINT NOT NULL,
            is_ended BIGINT NOT NULL,
            created_at BIGINT NOT NULL,
            seen_at BIGINT NOT NULL,
            PRIMARY KEY (id),
            UNIQUE (model_id)
        )
    """)
    op.execute("CREATE INDEX ix_tinker_runs_session_id ON tinker_runs (session_id)")
    op.execute("""
        CREATE TABLE tinker_samplers (
            id TEXT COLLATE "C" NOT NULL,
            session_id TEXT COLLATE "C" NOT NULL,
            base_model TEXT COLLATE "C" NOT NULL,
            path TEXT COLLATE "C",
            follows TEXT COLLATE "C",
            clients BIGINT NOT NULL,
            PRIMARY KEY (id)
        )
    """)
    op.execute("CREATE INDEX ix_tinker_samplers_session_id ON tinker_samplers (session_id)")
    op.execute("""
        CREATE TABLE tinker_checkpoints (
            path TEXT COLLATE "C" NOT NULL,
            run_id TEXT COLLATE "C" NOT NULL,
            kind TEXT COLLATE "C" NOT NULL,
            step BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            is_public BIGINT NOT NULL,
            user_metadata TEXT COLLATE "C",
            expires_at BIGINT,
            created_at BIGINT NOT NULL,
            PRIMARY KEY (path)
        )
    """)
    op.execute("CREATE INDEX ix_tinker_checkpoints_run_id ON tinker_checkpoints (run_id)")
    op.execute("""
        CREATE TABLE tinker_requests (
            number BIGSERIAL NOT NULL,
            id TEXT COLLATE "C" NOT NULL,
            target TEXT COLLATE "C" NOT NULL,
            seq BIGINT NOT NULL,
            kind TEXT COLLATE "C" NOT NULL,
            state TEXT COLLATE "C" NOT NULL,
            body BYTEA NOT NULL,
            result BYTEA,
            error TEXT COLLATE "C",
            is_users_fault BIGINT NOT NULL,
            attempts BIGINT NOT NULL,
            cancel_asked BIGINT NOT NULL,
            lease_owner TEXT COLLATE "C",
            lease_until BIGINT,
            created_at BIGINT NOT NULL,
            started_at BIGINT,
            ended_at BIGINT,
            PRIMARY KEY (number),
            UNIQUE (id),
            UNIQUE (target, seq)
        )
    """)
    op.execute("CREATE INDEX ix_tinker_requests_target ON tinker_requests (target)")
    op.execute("CREATE INDEX ix_tinker_requests_state ON tinker_requests (state)")
