"""Values that can never work stop the start, wherever they come from, and `heddle check` names the same reason."""

import json
from pathlib import Path

import pytest

from heddle import checks
from heddle.errors import HeddleError
from heddle.inference.served_model import check_settings
from heddle.settings import BadSetting, Settings, load
from heddle.store.data_folder import make_folder

MALFORMED = {
    "port": "99999",
    "workers": "0",
    "auth": "true",
    "store": "postgresql://x/y",
    "control": "mysql://x",
    "files": "s3:bucket",
    "adapters": "foo",
    "alert_webhooks": "ftp://x",
    "alert_emails": "nobody",
    "smtp": "mail.example.com",
    "public_url": "heddle.example.com",
    "root_path": "heddle",
    "trusted_proxies": "10.0.0.0/33",
    "cors_origins": "https://app.example.com/path",
    "providers": "a=http://h;a=http://i",
    "vllm_urls": "gpu-1:8000",
    "vllm_command": "'unclosed",
    "vllm_arguments": "--name 'unclosed",
    "vllm_takes": "a b",
    "engine_device": "gpu",
    "training_sources": "http://x",
    "max_file": "lots",
    "durability": "none",
    "bootstrap_key": "short",
    "default_project": "team",
    "query_timeout": "nan",
}
"""Values that are none of the setting."""


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_a_value_of_the_wrong_form_names_its_setting_and_source(name: str, source: str, tmp_path: Path) -> None:
    value = MALFORMED[name]
    file = tmp_path / "heddle.toml"
    file.write_text(f"{name} = {json.dumps(value)}\n" if source == "file" else "", encoding="utf-8")
    flags = {name: value} if source == "flag" else {}
    variables = {f"HEDDLE_{name.upper()}": value} if source == "variable" else {}
    place = {"flag": f"flag --{name.replace('_', '-')}", "variable": f"variable HEDDLE_{name.upper()}"}
    with pytest.raises(BadSetting) as refused:
        load(flags, variables, str(file))
    told = str(refused.value)
    assert told.startswith(f"{name} = ") and "is not valid; expected " in told and "\n" not in told
    assert f"(from {place.get(source, f'file {file}')})" in told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"port": "8470", "otlp_grpc_port": "8470"}, "port and otlp_grpc_port are both 8470"),
        ({"cors_origins": "any"}, "cors_origins = 'any' is not allowed without keys"),
        (
            {"bootstrap_key": "k" * 20, "bootstrap_key_file": "/x"},
            "bootstrap_key and bootstrap_key_file cannot both be set",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str], told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        load(settings, {})


def unusable(folder: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Settings of the right form that nothing can come of on this machine, and what is said of them."""
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{", encoding="utf-8")
    (folder / "file").write_text("x", encoding="utf-8")
    cases: dict[str, tuple[dict[str, str], str]] = {
        "no model": ({"model": f"{folder}/nowhere"}, "Model folder "),
        "empty model": ({"model": f"{folder}/empty"}, "has no config.json"),
        "broken model": ({"model": f"{folder}/broken"}, "config.json cannot be read"),
        "misspelled model": ({"model": "heddle-tini"}, "Model folder "),
        "no adapter": ({"adapters": f"a={folder}/empty"}, "adapters: adapter_config.json not found"),
        "no root": ({"adapter_roots": f"{folder}/nowhere"}, "adapter_roots: folder"),
        "no program": ({"engine": "vllm", "vllm_command": "no-such-program"}, "vllm_command: program"),
        "int8 of vLLM": (
            {"engine": "vllm", "engine_dtype": "int8"},
            "engine_dtype int8 is only supported by heddle's own engine",
        ),
        "no data folder": ({"data": f"{folder}/file"}, f"{folder}/file"),
        "no key file": ({"bootstrap_key_file": f"{folder}/nowhere", "auth": "on"}, "bootstrap_key_file"),
        "two stores": ({"store_cluster": "c"}, "store_cluster requires store = clickhouse"),
    }
    if not any(Path("/dev").glob("nvidia*")):
        for name in ("engine_device", "training_device"):
            cases[name] = ({name: "cuda:3"}, f"{name} = 'cuda:3' cannot be used: this machine has no GPU")
    return cases


def start(settings: Settings) -> None:
    """What a start looks at before it serves; raises what stops it."""
    from heddle.store import open as stores

    settings.first_key()
    stores.check(settings)
    make_folder(Path(settings.data))
    check_settings(settings)


def test_what_can_never_work_here_stops_the_start_and_fails_the_check(tmp_path: Path) -> None:
    for name, (given, told) in unusable(tmp_path).items():
        settings = load({"data": str(tmp_path / "data"), "port": "0"} | given, {})
        with pytest.raises((BadSetting, HeddleError)) as stopped:
            start(settings)
        assert told in str(stopped.value), name
        faults = [finding.found for finding in checks.look(settings, 5) if finding.is_fault]
        assert any(told in fault for fault in faults), (name, faults)


def test_a_first_key_that_is_not_made_yet_is_no_fault(tmp_path: Path) -> None:
    settings = load({"data": str(tmp_path / "data"), "port": "0", "auth": "on", "bootstrap_key": "k" * 20}, {})
    assert [finding for finding in checks.look(settings, 5) if finding.is_fault] == []
    without = load({"data": str(tmp_path / "data"), "port": "0", "auth": "on"}, {})
    assert [finding.what for finding in checks.look(without, 5) if finding.is_fault] == ["auth"]
