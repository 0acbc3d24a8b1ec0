"""`hf-factuality world export` and `World.export` do the same; what `build` does is in tests/worlds."""

import json
from dataclasses import asdict

from hf_factuality.cli import main
from hf_factuality.worlds import World, WorldConfig


def test_command_and_function_give_the_same_result(tmp_path, capsys):
    config = WorldConfig(seed=3)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "world.json").write_text(json.dumps({"world": asdict(config)}))
    files = World(config).export(tmp_path / "one")
    assert main(["world", "export", str(tmp_path / "model"), "--out", str(tmp_path / "two")]) == 0
    printed = [f"{rows} rows in {tmp_path / 'two' / path.name}" for path, rows in files.items()]
    assert capsys.readouterr().out.splitlines() == printed
    for path, rows in files.items():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
        assert len(path.read_text().splitlines()) == rows > 0
