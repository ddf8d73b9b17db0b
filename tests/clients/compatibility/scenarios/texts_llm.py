import os
import subprocess
import sys
from pathlib import Path

from texts import ADDRESS, KEY, MISSING, PROMPT, SERVED, report, texts

MODELS = """
- {{model_id: ours, model_name: {served}, api_base: "{address}", api_key_name: heddle, completion: true}}
- {{model_id: none, model_name: {missing}, api_base: "{address}", api_key_name: heddle, completion: true}}
"""
folder = Path(os.environ["SCENARIO_FOLDER"]) / "llm"
folder.mkdir()
(folder / "extra-openai-models.yaml").write_text(MODELS.format(served=SERVED, missing=MISSING, address=ADDRESS))
command = [str(Path(sys.executable).parent / "llm")]
environment = {**os.environ, "LLM_USER_PATH": str(folder)}


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run([*command, *words], capture_output=True, text=True, env=environment, check=False)


ask("keys", "set", "heddle", "--value", KEY)
options = ["-o", "temperature", "0", "-o", "max_tokens", "8"]
whole = ask("-m", "ours", "--no-stream", *options, PROMPT)
streamed = ask("-m", "ours", *options, PROMPT)
missing = ask("-m", "none", PROMPT)
report(
    completion=[whole.stdout.removesuffix("\n")] == texts(),
    stream=[streamed.stdout.removesuffix("\n")] == texts(),
    error=missing.returncode != 0 and "does not exist" in missing.stderr,
)
