"""`heddle eval run` and `heddle eval compare` as they are typed; what they do is imported when they do it."""

from typing import Annotated

import typer

from heddle.command_options import Key, Server

commands = typer.Typer(help="Evaluations on a running server: run one, compare two runs.", no_args_is_help=True)

FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help="A regression, such as 'score < -0.02' (the difference from the baseline); repeat for several.",
        metavar="CONDITION",
    ),
]
Where = Annotated[
    str | None, typer.Option("--project", help="entity/project; by default that of a full ref. [HEDDLE_PROJECT]")
]
Junit = Annotated[str | None, typer.Option("--junit", help="Write JUnit XML to this file.", metavar="FILE")]
JsonFile = Annotated[str | None, typer.Option("--json", help="Write everything as JSON to this file.", metavar="FILE")]
Markdown = Annotated[
    str | None, typer.Option("--markdown", help="Write the table as Markdown to this file.", metavar="FILE")
]
Sarif = Annotated[
    str | None, typer.Option("--sarif", help="Write failed conditions as SARIF to this file.", metavar="FILE")
]


@commands.command("run")
def run(
    evaluation: Annotated[str, typer.Argument(help="An evaluation: name, name:version or full ref.")],
    model: Annotated[
        str, typer.Option(help="A stored model (name, name:version, ref), or one that the server serves.")
    ],
    baseline: Annotated[
        str, typer.Option(help="A run's id, `latest` (the first run becomes the baseline), or a model to evaluate.")
    ] = "latest",
    fail_if: FailIf = None,
    project: Where = None,
    temperature: Annotated[
        float | None, typer.Option(help="The temperature of a served model, not of a stored one; 0 by default.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of an answer of a served model.")] = None,
    timeout: Annotated[float | None, typer.Option(help="The most seconds a run may take.", min=0)] = None,
    junit: Junit = None,
    json_file: JsonFile = None,
    markdown: Markdown = None,
    sarif: Sarif = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Evaluate a model on the server, compare it with a baseline row by row, and fail on a regression."""
    from heddle.ci import program

    given = {"temperature": temperature, "max_tokens": max_tokens}
    parameters = {name: value for name, value in given.items() if value is not None}
    options = program.Options(fail_if or (), project, junit, json_file, markdown, sarif, server, key)
    program.run(evaluation, model, baseline, parameters, timeout, options)


@commands.command("compare")
def compare_runs(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")],
    baseline: Annotated[str, typer.Argument(help="The id of the run to compare it with.")],
    fail_if: FailIf = None,
    project: Where = None,
    junit: Junit = None,
    json_file: JsonFile = None,
    markdown: Markdown = None,
    sarif: Sarif = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Compare two stored runs row by row, and fail on a regression."""
    from heddle.ci import program

    options = program.Options(fail_if or (), project, junit, json_file, markdown, sarif, server, key)
    program.compare_runs(run_id, baseline, options)
