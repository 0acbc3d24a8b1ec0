"""The steps of `action.yml` as a runner has them: each script in bash, with its environment. Nothing is copied by hand.

`python -m tests.action_steps` prints the scripts as one, for a look.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml


ACTION = Path(__file__).resolve().parent.parent / "action.yml"


def read_action():
    return yaml.safe_load(ACTION.read_text(encoding="utf-8"))


def scripts(given):
    """Name, script and environment of each step that runs one, with the inputs in place of their expressions."""
    action = read_action()
    inputs = {name: str(it.get("default", "")) for name, it in action["inputs"].items()} | given
    unknown = set(given) - set(action["inputs"])
    assert not unknown, f"no such inputs: {unknown}"

    def filled(text):
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda name: inputs[name[1]], text)

    for step in action["runs"]["steps"]:
        if "run" in step:
            assert step["shell"] == "bash" and "${{" not in step["run"], "an expression in a script would be run"
            yield step["name"], step["run"], {name: filled(value) for name, value in step.get("env", {}).items()}


class Runner:
    """Runs the steps in a folder, as GitHub does; `environment` holds what else the steps see."""

    def __init__(self, folder, python=sys.executable, **environment):
        self.folder = folder
        # A script, since a link to the interpreter of an environment would not know its packages.
        tools = folder / "tools"
        tools.mkdir()
        (tools / "python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (tools / "python").chmod(0o755)
        self.output, self.summary = folder / "output", folder / "step_summary.md"
        self.environment = {
            **os.environ,
            **environment,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ACTION.parent),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def run(self, steps=("Install", "Verify"), **given):
        """The result of the last step, or of the first that failed."""
        for name, script, environment in scripts({key.replace("_", "-"): value for key, value in given.items()}):
            if name not in steps:
                continue
            file = self.folder / f"{name}.sh"
            file.write_text(script, encoding="utf-8")
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)],
                cwd=self.folder,
                env={**self.environment, **environment},
                capture_output=True,
                text=True,
                timeout=300,
            )
            if done.returncode:
                break
        return done


if __name__ == "__main__":
    for name, script, environment in scripts({}):
        print(f"# {name}", *(f"export {key}={value!r}" for key, value in environment.items()), script, sep="\n")
