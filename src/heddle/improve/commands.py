"""`heddle improve` as it is typed; what it does is imported when it does it."""

from typing import Annotated

import typer

from heddle.ci.commands import Where
from heddle.command_options import Key, Server
from heddle.remote import Place
from heddle.wire.jsontypes import Json

commands = typer.Typer(
    help="Train a model on its weak calls, gate the result, promote it and watch it.", no_args_is_help=True
)
Id = Annotated[str, typer.Argument(help="The id of an improvement.", metavar="ID")]


@commands.command("start")
def start(
    model: Annotated[str, typer.Argument(help="The name of a trainable model of the project.")],
    scorer: Annotated[list[str], typer.Option(help="The scorer that gives the reward: name, name:version or ref.")],
    project: Where = None,
    base_model: Annotated[
        str | None, typer.Option(help="Create the model from this base model if it does not exist.")
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="Select weak calls of this op.")] = None,
    query: Annotated[str | None, typer.Option(help="Select weak calls that match this query (JSON).")] = None,
    error_group: Annotated[str | None, typer.Option(help="Select weak calls that failed with this error.")] = None,
    monitor: Annotated[str | None, typer.Option(help="Select weak calls that were scored by this monitor ...")] = None,
    scored_by: Annotated[str | None, typer.Option(help="... or by this scorer (its name) ...")] = None,
    below: Annotated[float | None, typer.Option(help="... below this bound.")] = None,
    limit: Annotated[int, typer.Option(help="Use at most this many of the newest weak calls.")] = 1000,
    column: Annotated[
        list[str] | None, typer.Option(help="A column of the rows, read from a path in the call.", metavar="NAME=PATH")
    ] = None,
    general: Annotated[
        str | None, typer.Option(help="An evaluation that must not get worse: name, name:version or ref.")
    ] = None,
    held_out: Annotated[float, typer.Option(help="The share of chats held out from training.")] = 0.3,
    seed: Annotated[int, typer.Option(help="The seed of the split and of all sampling.")] = 0,
    steps: Annotated[int, typer.Option(help="Run at most this many training jobs.")] = 30,
    chats: Annotated[int, typer.Option(help="Chats per training job.")] = 8,
    answers: Annotated[int, typer.Option(help="Answers per chat.")] = 8,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of an answer.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The learning rate of the training jobs.")] = None,
    judge: Annotated[
        str | None, typer.Option("--ruler", help="Reward by RULER with this judge: a served model or provider/model.")
    ] = None,
    budget: Annotated[float, typer.Option(help="CPU seconds before the gate.")] = 3600.0,
    watch: Annotated[str | None, typer.Option(help="Roll back if the newest scores of this monitor ...")] = None,
    watch_below: Annotated[float | None, typer.Option(help="... have a mean below this.")] = None,
    watch_calls: Annotated[int, typer.Option(help="How many of the newest scores count.")] = 20,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it until it is promoted or refused.")] = True,
    server: Server = None,
    key: Key = None,
) -> None:
    """Start an improvement; exits with 0 if it was promoted, 1 if the gate refused it, 2 if it failed."""
    from heddle.improve import program

    weak: Json = {"error_group": error_group, "monitor": monitor, "scorer": scored_by, "below": below, "limit": limit}
    weak |= {"filter": {"op_names": op} if op else None, "query": query}
    body = {
        "held_out": held_out,
        "seed": seed,
        "rollouts": {"steps": steps, "chats": chats, "answers": answers, "max_tokens": max_tokens},
        "experimental_config": {"learning_rate": learning_rate},
        "budget_seconds": budget,
        "ruler": None if judge is None else {"judge_model": judge},
        "watch": None if watch is None else {"monitor": watch, "below": watch_below, "calls": watch_calls},
    }
    names = program.Names(model, base_model, scorer, general, column or [])
    program.start(names, weak, body, Place(project, server, key), wait)


@commands.command("list")
def list_all(project: Where = None, server: Server = None, key: Key = None) -> None:
    """Print the improvements of a project, newest first."""
    from heddle.improve import program

    program.list_all(Place(project, server, key))


@commands.command("show")
def show(improvement: Id, project: Where = None, server: Server = None, key: Key = None) -> None:
    """Print the timeline of an improvement."""
    from heddle.improve import program

    program.show(improvement, Place(project, server, key))


@commands.command("stop")
def stop(improvement: Id, project: Where = None, server: Server = None, key: Key = None) -> None:
    """Stop an improvement, or the watch of its promotion; what was trained or promoted stays."""
    from heddle.improve import program

    program.stop(improvement, Place(project, server, key))


@commands.command("demo")
def demo(project: Where = None, server: Server = None, key: Key = None) -> None:
    """Plant a weakness in a copy of heddle-tiny, improve it, and let a regression roll it back (10 minutes)."""
    from heddle.improve import program

    program.demonstrate(Place(project, server, key))
