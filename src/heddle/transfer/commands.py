"""`heddle export` and `heddle import ...` as they are typed; what they do is imported when they do it."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.command_options import Config, Data, load_settings

if TYPE_CHECKING:
    from heddle.remote import Remote
    from heddle.transfer.target import Report, Target

importing = typer.Typer(
    help="Import an archive, a W&B Weave project, or data from Phoenix, MLflow or Langfuse.", no_args_is_help=True
)

StoreAddress = Annotated[str | None, typer.Option("--store", help="Where calls are kept, as for `heddle serve`.")]
Control = Annotated[str | None, typer.Option("--control", help="Where everything but calls and files is kept.")]
Files = Annotated[str | None, typer.Option("--files", help="Where files are kept, as for `heddle serve`.")]
Into = Annotated[str, typer.Option("--into", help="entity/project of the heddle server.")]
To = Annotated[str | None, typer.Option("--to", help="The address of the heddle server. [HEDDLE_SERVER]")]
ToKey = Annotated[str | None, typer.Option("--to-key", help="The key of the heddle server. [HEDDLE_API_KEY]")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON lines instead of Parquet; does not need pyarrow.")]


def _print_report(head: str, report: "Report") -> None:
    """Print a report; exit code 3 says that something was left out."""
    typer.echo(head)
    for line in report.lines():
        typer.echo(line)
    if report.left_out:
        raise typer.Exit(3)


def export(
    target: Annotated[Path, typer.Argument(help="A new file, such as project.heddle; a new folder with Parquet.")],
    project: Annotated[
        list[str] | None, typer.Option("--project", help="entity/project; repeat for several. By default all.")
    ] = None,
    as_json: AsJson = False,
    format_: Annotated[
        str, typer.Option("--format", help="archive (for heddle import), or parquet (for DuckDB, pandas, Spark).")
    ] = "archive",
    data: Data = None,
    store: StoreAddress = None,
    control: Control = None,
    files: Files = None,
    config: Config = None,
) -> None:
    """Export projects as one archive or as Parquet, all as of one instant; works while the server is running."""
    from heddle.transfer.export import export as write

    if format_ not in ("archive", "parquet") or (as_json and format_ == "parquet"):
        raise typer.BadParameter("--format must be archive or parquet, and --json can be used only with archive")
    settings = load_settings(config, data=data, store=store, control=control, files=files)
    if format_ == "parquet":
        from heddle.transfer import parquet

        counts = asyncio.run(parquet.export(settings, target, project or []))
        told = ", ".join(f"{name}.parquet ({count} rows)" for name, count in counts.items())
        typer.echo(f"exported to {target}: {told}")
        return
    manifest = asyncio.run(write(settings, target, project or [], as_json))
    typer.echo(f"exported to {target}:")
    for group, count in manifest.counts.items():
        typer.echo(f"  {group.rsplit('/', 1)[-1].replace('_', ' ')}: {count}")
    typer.echo(f"  contents of files: {manifest.blobs} ({manifest.blob_bytes} bytes)")


@importing.command("archive")
def import_archive(
    source: Annotated[Path, typer.Argument(help="An archive written by `heddle export`.")],
    project: Annotated[
        list[str] | None,
        typer.Option("--project", help="Store a project under another name; repeat for several.", metavar="OLD=NEW"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="Import into a running server instead of the store in the settings.")
    ] = None,
    to_key: ToKey = None,
    data: Data = None,
    store: StoreAddress = None,
    control: Control = None,
    files: Files = None,
    config: Config = None,
) -> None:
    """Import an archive; repeating it adds nothing, and after a crash it continues where it stopped."""
    from heddle.transfer import archive_import
    from heddle.transfer.target import explain_mismatch, send_archive

    with explain_mismatch(source):
        if to is not None:
            report = send_archive(to, to_key, source, project or [])
        else:
            settings = load_settings(config, data=data, store=store, control=control, files=files)
            report = asyncio.run(archive_import.import_archive(settings, source, project or []))
    _print_report(f"imported {source}:", report)


@importing.command("weave")
def import_weave(
    project: Annotated[str, typer.Option("--project", help="entity/project in Weave.")],
    server: Annotated[
        str, typer.Option("--server", help="The address of Weave's trace API.")
    ] = "https://trace.wandb.ai",
    key: Annotated[str | None, typer.Option("--key", help="The W&B API key.", envvar="WANDB_API_KEY")] = None,
    into: Annotated[str | None, typer.Option("--into", help="entity/project in heddle; by default the same.")] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep the downloaded data as an archive in this new file.")
    ] = None,
    data: Data = None,
    store: StoreAddress = None,
    control: Control = None,
    files: Files = None,
    config: Config = None,
) -> None:
    """Import a W&B Weave project through its public API, with its ids, users and times."""
    from heddle.transfer import archive_import
    from heddle.transfer.target import explain_mismatch
    from heddle.transfer.weave import fetch

    settings = load_settings(config, data=data, store=store, control=control, files=files)
    archive_import.check_free(settings)
    with tempfile.TemporaryDirectory(prefix="heddle-import-") as scratch:
        archive = keep or Path(scratch) / "weave.heddle"
        with explain_mismatch(server):
            read = fetch(server, key, project, archive)
        report = asyncio.run(archive_import.import_archive(settings, archive, [f"{project}={into}"] if into else []))
    report.left_out |= read.left_out
    report.notes += read.notes
    _print_report(f"imported {project} of {server}:", report)


SourceKey = Annotated[str | None, typer.Option("--key", help="The key or token of the source, if it needs one.")]


def _import_from(
    send: "Callable[[Remote, str, Target], Report]",
    server: str,
    named: str,
    key: str | None,
    into: str,
    to: str | None,
    to_key: str | None,
) -> None:
    from heddle.remote import Remote
    from heddle.transfer.target import Target, explain_mismatch

    source = Remote(server, key, from_environment=False)
    with explain_mismatch(server):
        report = send(source, named, Target(to, to_key, into))
    _print_report(f"imported {named} of {server}:", report)


@importing.command("phoenix")
def import_phoenix(
    server: Annotated[str, typer.Option("--server", help="The address of Phoenix.")],
    project: Annotated[str, typer.Option("--project", help="The name of the project in Phoenix.")],
    into: Into,
    key: SourceKey = None,
    to: To = None,
    to_key: ToKey = None,
) -> None:
    """Send the spans, annotations and datasets of a Phoenix project to a running server."""
    from heddle.transfer.phoenix import import_project

    _import_from(import_project, server, project, key, into, to, to_key)


@importing.command("mlflow")
def import_mlflow(
    server: Annotated[str, typer.Option("--server", help="The address of the tracking server.")],
    experiment: Annotated[str, typer.Option("--experiment", help="The name of the experiment in MLflow.")],
    into: Into,
    key: SourceKey = None,
    to: To = None,
    to_key: ToKey = None,
) -> None:
    """Send the traces and assessments of an MLflow experiment to a running server."""
    from heddle.transfer.mlflow import import_experiment

    _import_from(import_experiment, server, experiment, key, into, to, to_key)


@importing.command("langfuse")
def import_langfuse(
    folder: Annotated[Path, typer.Argument(help="The folder of the export: observations_v2/, scores/, ...")],
    into: Into,
    to: To = None,
    to_key: ToKey = None,
) -> None:
    """Send the observations and scores of a Langfuse export to a running server."""
    from heddle.transfer.langfuse import import_files
    from heddle.transfer.target import Target, explain_mismatch

    with explain_mismatch(folder):
        report = import_files(folder, Target(to, to_key, into))
    _print_report(f"imported {folder}:", report)
