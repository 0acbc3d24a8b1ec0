"""Runs a test's module as the ranks of one group on this machine, and ends them for certain.

Every rank writes into files of its own, so that no lines mix. The group meets in a store that the test itself holds, on
a port that nobody else can take. Ranks that wait for each other for ever are asked for their stacks, and killed.
"""

import faulthandler
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path


REPOSITORY = Path(__file__).resolve().parents[1]
GRACE = 60.0  # seconds that the others have once a rank has failed


def run_ranks(module, *arguments, ranks=2, timeout=900.0, **environment):
    """What `module.main()` made in every rank, with `arguments` in `sys.argv`.

    Returns:
        `list[subprocess.CompletedProcess]`: in order of the ranks; one that was killed has its stacks in `stderr`.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", **environment,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.processes", module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(ranks)]
        started = []
        try:
            for rank, (out, err) in enumerate(files):
                own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                with out.open("wb") as stdout, err.open("wb") as stderr:
                    started.append(subprocess.Popen(command, cwd=REPOSITORY, env=own, stdout=stdout, stderr=stderr))
            end = time.monotonic() + timeout
            while any(process.poll() is None for process in started) and time.monotonic() < end:
                if any(process.poll() for process in started):
                    end = min(end, time.monotonic() + GRACE)
                time.sleep(0.05)
        finally:
            left = [process for process in started if process.poll() is None]
            for process in left:
                process.send_signal(signal.SIGUSR1)
            time.sleep(2.0 if left else 0.0)  # for the stacks to be written
            for process in left:
                process.kill()
                process.wait()
        return [
            subprocess.CompletedProcess(
                process.args, process.returncode, out.read_text("utf-8"), err.read_text("utf-8")
            )
            for process, (out, err) in zip(started, files, strict=True)
        ]


def assert_ended_well(done):
    """All ranks ended with status 0; says what they wrote otherwise."""
    told = [
        f"rank {rank}: {each.returncode}\n{each.stdout[-3000:]}\n{each.stderr[-6000:]}"
        for rank, each in enumerate(done)
    ]
    assert [each.returncode for each in done] == [0] * len(done), "\n".join(told)


def _main():
    """A rank. It ends without freeing anything: the last owner of a group of gloo that is freed may wait for ever."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    status = 1
    try:
        del sys.argv[0]
        importlib.import_module(sys.argv[0]).main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
        print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _main()
