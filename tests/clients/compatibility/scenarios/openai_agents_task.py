import subprocess

from agent_task import FOLDER, TASK, result
from agents import Agent, Runner, function_tool, set_tracing_disabled
from weather import SERVED, report

set_tracing_disabled(True)


@function_tool
def run_command(command: str) -> str:
    """Run a command in the folder."""
    done = subprocess.run(command, shell=True, cwd=FOLDER, capture_output=True, text=True, check=True)
    return done.stdout


@function_tool
def write_file(name: str, text: str) -> str:
    """Write a file in the folder."""
    (FOLDER / name).write_text(text)
    return "written"


agent = Agent(name="worker", model=SERVED, tools=[run_command, write_file])
run = Runner.run_sync(agent, TASK, max_turns=12)
report(**result(run.final_output, ""))
