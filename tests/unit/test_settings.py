"""The table of settings: sources, their order, and refusals that say what is allowed."""

from pathlib import Path

import pytest

from heddle.cli import _arguments
from heddle.setting_kinds import show_size
from heddle.settings import TABLE, BadSetting, Settings, load

MIB = 1024**2


def test_defaults_are_those_of_the_table() -> None:
    settings = load({}, {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.data) == ("127.0.0.1", 8470, "./heddle-data")
    assert (settings.max_trace_body, settings.max_chat_body) == (32 * MIB, 8 * MIB)
    assert (settings.max_training_body, settings.max_file, settings.max_page_rows) == (256 * MIB, 1024 * MIB, 10_000)


def test_every_row_has_a_sentence_and_accepts_its_own_default() -> None:
    for row in TABLE:
        assert row.sentence.endswith("."), row.name
        assert row.read(row.show(row.default), "test") == row.default


def test_flags_win_over_variables_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "heddle.toml"
    config.write_text('port = 1001\nreaders = 2\nmax_file = "2MiB"\nquery_timeout = 1.5\n')
    environment = {"HEDDLE_PORT": "1002", "HEDDLE_READERS": "3", "HEDDLE_CONFIG": str(config)}
    settings = load({"port": "1003", "readers": None}, environment)
    assert (settings.port, settings.readers, settings.max_file, settings.query_timeout) == (1003, 3, 2 * MIB, 1.5)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1048576", MIB), ("1MiB", MIB), ("1 mib", MIB), ("1.5KiB", 1536), ("2kb", 2000), ("1g", 1024 * MIB)],
)
def test_sizes_have_many_spellings(text: str, size: int) -> None:
    assert load({"max_file": text}, {}).max_file == size


def test_no_limit_is_zero_only_where_that_is_said() -> None:
    assert load({"max_database_bytes": "0"}, {}).max_database_bytes == 0
    with pytest.raises(BadSetting):
        load({"max_file": "0"}, {})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("port", "99999", "a whole number from 0 to 65535"),
        ("port", "http", "a whole number from 0 to 65535"),
        ("auth", "maybe", "one of auto, on, off"),
        ("max_file", "12 parsec", "a size from 1 to 1TiB"),
        ("query_timeout", "nan", "a number from 0.1 to 86400"),
    ],
)
def test_a_wrong_value_names_setting_value_source_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(BadSetting) as refused:
        load({}, {f"HEDDLE_{name.upper()}": value})
    for part in (name, repr(value), f"HEDDLE_{name.upper()}", allowed):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", "mysql://quill:hunter2@db:8123/heddle"),
        ("store", "clickhouse://quill:hunter2@db:port/heddle"),
        ("control", "postgresql://quill:hun ter2@db/heddle"),
        ("control", "postgresql://quill:hunter2/5@db/heddle"),
        ("vllm_urls", "http://one:8000,ftp://quill:hunter2@two:8000"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} = ") as refused:
        load({name: value}, {})
    assert "ter2" not in str(refused.value) and "quill" not in str(refused.value)


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "heddle.toml"
    config.write_text("prot = 1\n")
    with pytest.raises(BadSetting, match=r"prot in .* is not a setting of heddle: did you mean port\?"):
        load({}, {}, str(config))
    config.write_text("port = [1]\n")
    with pytest.raises(BadSetting, match=r"port = '\[1\]'"):
        load({}, {}, str(config))
    config.write_text("port =")
    with pytest.raises(BadSetting, match="is not valid TOML"):
        load({}, {}, str(config))
    with pytest.raises(BadSetting, match="cannot be read"):
        load({}, {}, str(tmp_path / "nowhere.toml"))


def test_variables_of_no_setting_stop_the_start() -> None:
    with pytest.raises(
        BadSetting, match=r"variable HEDDLE_PROT is not a setting of heddle: did you mean HEDDLE_PORT\?"
    ):
        load({}, {"HEDDLE_PROT": "1", "HEDDLE_PORT": "1", "HEDDLE_CONFIG": "", "HOME": "/"})
    with pytest.raises(BadSetting, match="variable HEDDLE_ZZZZ is not a setting of heddle: known are HEDDLE_HOST"):
        load({}, {"HEDDLE_ZZZZ": "1"})


def test_what_a_service_of_kubernetes_adds_is_no_setting() -> None:
    load(
        {}, {"HEDDLE_SERVICE_HOST": "10.0.0.1", "HEDDLE_SERVICE_PORT": "8470", "HEDDLE_PORT_8470_TCP_ADDR": "10.0.0.1"}
    )


def test_what_the_tests_of_this_project_set_is_no_setting() -> None:
    load({}, {"HEDDLE_SOAK": "1", "HEDDLE_SCREENS": "screens", "HEDDLE_TEST_STORE": "clickhouse"})


def test_an_empty_variable_was_not_given() -> None:
    assert load({}, {"HEDDLE_PORT": "", "HEDDLE_CORS_ORIGINS": " "}) == Settings()


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    row = next(row for row in TABLE if row.name == "bootstrap_key")
    assert row.show(load({}, {"HEDDLE_BOOTSTRAP_KEY": "k" * 20}).bootstrap_key) == "***"
    with pytest.raises(BadSetting) as refused:
        load({}, {"HEDDLE_BOOTSTRAP_KEY": "short secret"})
    assert "short secret" not in str(refused.value)


def test_the_first_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("k" * 32 + "\n", encoding="utf-8")
    assert load({"bootstrap_key_file": str(path)}, {}).first_key() == "k" * 32
    assert load({}, {}).first_key() == ""
    with pytest.raises(BadSetting, match="cannot be read"):
        load({"bootstrap_key_file": str(tmp_path / "none")}, {}).first_key()
    with pytest.raises(BadSetting, match="cannot both be set"):
        load({"bootstrap_key_file": str(path)}, {"HEDDLE_BOOTSTRAP_KEY": "k" * 20})


@pytest.mark.parametrize(
    ("host", "auth", "needed"),
    [
        ("127.0.0.1", "auto", False),
        ("::1", "auto", False),
        ("localhost", "auto", False),
        ("127.8.9.1", "auto", False),
        ("0.0.0.0", "auto", True),
        ("heddle.example.org", "auto", True),
        ("127.0.0.1", "on", True),
    ],
)
def test_keys_are_needed_unless_only_this_machine_can_call(host: str, auth: str, needed: bool) -> None:
    assert Settings(host=host, auth=auth).needs_key is needed


def test_sizes_are_shown_as_people_write_them() -> None:
    assert [show_size(size) for size in (0, 1000, 1024, 32 * MIB, 1024 * MIB)] == ["0", "1000", "1KiB", "32MiB", "1GiB"]


@pytest.mark.parametrize("flag", ["--auth", "--trace-inference"])
def test_a_bare_switch_means_on(flag: str) -> None:
    assert _arguments(["serve", flag, "--port", "1"]) == ["serve", flag, "on", "--port", "1"]
    assert _arguments(["serve", flag]) == ["serve", flag, "on"]
    assert _arguments(["serve", flag, "off"]) == ["serve", flag, "off"]


def test_each_value_that_was_given_knows_its_source(tmp_path: Path) -> None:
    config = tmp_path / "heddle.toml"
    config.write_text('port = 1\nreaders = 2\nlog_level = "error"\n', encoding="utf-8")
    loaded = load({"port": 3, "host": None}, {"HEDDLE_PORT": "2", "HEDDLE_READERS": "3"}, str(config))
    assert loaded.sources == {
        "port": "flag --port",
        "readers": "variable HEDDLE_READERS",
        "log_level": f"file {config}",
    }
    assert loaded == load({"port": 3}, {"HEDDLE_READERS": "3", "HEDDLE_LOG_LEVEL": "error"})
