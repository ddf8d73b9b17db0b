"""Sums that are infinite beyond the largest number, where `sum` is an error."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Make the aggregate."""
    op.execute("""
        CREATE OR REPLACE FUNCTION heddle_add(total double precision, number double precision)
        RETURNS double precision LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
            SELECT CASE
                WHEN total > 0 AND number > 1.797693134862315e308 - total THEN 'Infinity'::double precision
                WHEN total < 0 AND number < -1.797693134862315e308 - total THEN '-Infinity'::double precision
                ELSE total + number END
        $$
    """)
    op.execute("""
        CREATE OR REPLACE AGGREGATE heddle_sum(double precision) (
            SFUNC = heddle_add, STYPE = double precision, COMBINEFUNC = heddle_add, PARALLEL = SAFE)
    """)
