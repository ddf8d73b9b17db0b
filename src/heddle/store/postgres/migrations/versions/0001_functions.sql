-- How values inside JSON texts are read by queries: as store/sqlite/jsonpath.py reads them.

-- A text as JSON whose zero characters are what stands for them in texts (see values.py): PostgreSQL refuses them.
CREATE FUNCTION heddle_json(source text) RETURNS json LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF strpos(source, '\u0000') > 0 THEN
        RETURN regexp_replace(source, '(?<!\\)((?:\\\\)*)\\u0000', E'\\1\U0010FFFF0', 'g')::json;
    END IF;
    RETURN source::json;
END $$;

-- Strings as they are, nothing and null empty, lists and objects as JSON, 5.0 as 5.
CREATE FUNCTION heddle_text(value json) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    kind text := json_typeof(value);
BEGIN
    IF value IS NULL OR kind = 'null' THEN
        RETURN '';
    ELSIF kind = 'string' THEN
        RETURN value #>> '{}';
    ELSIF kind = 'number' AND value::text ~ '[.eE]' AND value::text::numeric = trunc(value::text::numeric) THEN
        RETURN trunc(value::text::numeric)::text;
    END IF;
    RETURN replace(value::text, E'\U0010FFFF0', '\u0000');
END $$;

-- A text of digits as a number within 64 bits, null when it is none.
CREATE FUNCTION heddle_integer_of(source text) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    trimmed text := btrim(source, E' \t\n\x0b\f\r');
BEGIN
    IF trimmed !~ '^[+-]?[0-9]+$' THEN
        RETURN NULL;
    ELSIF length(trimmed) > 1000 THEN
        RETURN CASE WHEN trimmed LIKE '-%' THEN -9223372036854775808 ELSE 9223372036854775807 END;
    END IF;
    RETURN least(greatest(trimmed::numeric, -9223372036854775808), 9223372036854775807);
END $$;

-- A text of a number as floating point, infinite or 0 where it is too large or too small; null when it is none.
CREATE FUNCTION heddle_double_of(source text) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    trimmed text := btrim(source, E' \t\n\x0b\f\r');
    scale text;
    exact numeric;
BEGIN
    IF length(trimmed) > 5000
        OR trimmed !~ '^([+-]?[0-9]+|-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?)$' THEN
        RETURN NULL;
    ELSIF length(trimmed) < 300 AND trimmed !~ '[eE]' THEN
        RETURN trimmed::double precision;
    END IF;
    scale := coalesce(substring(trimmed from '[eE]([+-]?[0-9]+)$'), '0');
    IF length(scale) > 5 THEN
        scale := CASE WHEN scale LIKE '-%' THEN '-9999' ELSE '9999' END;
    END IF;
    exact := substring(trimmed from '^[^eE]+')::numeric * 10::numeric ^ scale::int;
    IF abs(exact) >= 1.797693134862315808e308 THEN
        RETURN sign(exact) * 'Infinity'::double precision;
    ELSIF abs(exact) < 5e-324 THEN
        RETURN 0;
    END IF;
    RETURN exact::double precision;
END $$;

-- A text as 0, 1 or a small number, null when it is none.
CREATE FUNCTION heddle_boolean_of(source text) RETURNS integer LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    number numeric := heddle_integer_of(source);
BEGIN
    IF source IN ('true', 'false') THEN
        RETURN (source = 'true')::int;
    END IF;
    RETURN CASE WHEN number BETWEEN 0 AND 255 THEN number::int END;
END $$;

-- Numbers without a fraction, and texts of digits.
CREATE FUNCTION heddle_integer(value json) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    kind text := json_typeof(value);
    number numeric;
BEGIN
    IF kind = 'string' THEN
        RETURN heddle_integer_of(value #>> '{}');
    ELSIF kind = 'number' THEN
        number := value::text::numeric;
        IF value::text !~ '[.eE]' THEN
            RETURN number;
        ELSIF number = trunc(number) THEN
            RETURN least(greatest(number, -9223372036854775808), 9223372036854775807);
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- Numbers as they are.
CREATE FUNCTION heddle_number(value json) RETURNS numeric LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF json_typeof(value) = 'number' THEN
        RETURN value::text::numeric;
    END IF;
    RETURN NULL;
END $$;

-- Numbers, and texts of numbers.
CREATE FUNCTION heddle_double(value json) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    kind text := json_typeof(value);
BEGIN
    IF kind IN ('string', 'number') THEN
        RETURN heddle_double_of(value #>> '{}');
    END IF;
    RETURN NULL;
END $$;

-- Truths, their words, and small numbers as they are.
CREATE FUNCTION heddle_boolean(value json) RETURNS integer LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF json_typeof(value) IN ('string', 'number', 'boolean') THEN
        RETURN heddle_boolean_of(heddle_text(value));
    END IF;
    RETURN NULL;
END $$;

-- A number as text: 5.0 is 5.
CREATE FUNCTION heddle_spelled(number numeric) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE WHEN number = trunc(number) THEN trunc(number)::text ELSE number::text END;
END $$;

-- The same of floating point: whole numbers with all their digits, others with fifteen.
CREATE FUNCTION heddle_spelled(number double precision) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE WHEN number = trunc(number) THEN trunc(number::text::numeric)::text ELSE number::numeric::text END;
END $$;

-- Elements of a list or an object, characters of a text; null for anything else.
CREATE FUNCTION heddle_size(value json) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    kind text := json_typeof(value);
BEGIN
    IF kind = 'array' THEN
        RETURN json_array_length(value);
    ELSIF kind = 'string' THEN
        RETURN length(replace(value #>> '{}', E'\U0010FFFF0', ' '));
    ELSIF kind = 'object' THEN
        RETURN (SELECT count(*) FROM json_object_keys(value));
    END IF;
    RETURN NULL;
END $$;
