"""The harness of the experiments: what runs, what is kept, and the arithmetic of the tables."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import evidence  # noqa: E402
import harness  # noqa: E402
import trade_off  # noqa: E402


SMALL = """
from dataclasses import replace
from hf_factuality.worlds import WorldConfig, WorldModelConfig
EXPERIMENT = replace(
    EXPERIMENT, steps=1, world=WorldConfig(num_people=12, num_values=4, num_targets=2),
    model=WorldModelConfig(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, steps=2, batch_size=4),
    test_sets=lambda run: {"held-out": run.world.questions("test", 4)},
)
"""
UNTRAINED = """
from harness import Experiment
from transformers import AutoModelForCausalLM

def same(run):
    with open("calls.txt", "a") as file:
        file.write(f"{run.seed} {run.condition} {run.world.split('test')[0].name}\\n")
    return AutoModelForCausalLM.from_pretrained(run.model_dir)

EXPERIMENT = Experiment(title="Nothing", arms={"same": same, "again": same}, baseline="same", test_sets=None)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, text):
    path.write_text(text + SMALL, encoding="utf-8")
    return harness.Settings(str(path), (0, 1), out=str(path.parent / "out"))


@pytest.mark.slow
def test_runs_each_job_once(folder):
    settings = write(folder / "nothing.py", UNTRAINED)
    first = [harness.run_job(settings, "", arm, seed) for seed in (0, 1) for arm in ("base", "same")]
    calls = Path("calls.txt").read_text().splitlines()
    assert [call.split()[:2] for call in calls] == [["0", "None"], ["1", "None"]]
    # Another seed holds other people out.
    assert calls[0].split()[2:] != calls[1].split()[2:]
    again = [harness.run_job(settings, "", arm, seed) for seed in (0, 1) for arm in ("base", "same")]
    assert again == first and len(Path("calls.txt").read_text().splitlines()) == 2
    # The arm returned the base, so that nothing differs but its name.
    assert first[0]["figures"] == first[1]["figures"]
    assert set(first[0]["figures"]) == {"held-out, greedy", "held-out, T=1"}


def test_an_edit_makes_results_stale(folder):
    settings = write(folder / "nothing.py", UNTRAINED)
    folders = [harness.results_folder(*harness.load_experiment(settings.experiment), settings)]
    for changed in (replace(settings, base_seed=1), replace(settings, steps=7), replace(settings, size="small")):
        folders.append(harness.results_folder(*harness.load_experiment(settings.experiment), changed))
    write(folder / "nothing.py", UNTRAINED + "# edited\n")
    folders.append(harness.results_folder(*harness.load_experiment(settings.experiment), settings))
    assert len(set(folders)) == 5
    # More seeds, or fewer arms, use what is there.
    more = replace(settings, seeds=(5,), arms=("same",))
    assert harness.results_folder(*harness.load_experiment(settings.experiment), more) == folders[-1]


@pytest.mark.slow
def test_a_failing_arm_costs_only_itself(folder, capsys):
    broken = UNTRAINED.replace('"again": same', '"again": lambda run: 1 / 0')
    write(folder / "nothing.py", broken)
    arguments = ["--experiment", str(folder / "nothing.py"), "--seeds", "1", "--workers", "1", "--out", "out"]
    assert evidence.main(arguments) == 1
    printed = capsys.readouterr()
    assert "ZeroDivisionError" in printed.err and "1 runs failed" in printed.err
    assert "| same |" in printed.out and "again" not in printed.out.split("minus")[0].split("# Nothing")[1]
    written = {path.suffix for path in next(Path("out").iterdir()).glob("seeds-0-0.*")}
    assert written == {".json", ".md", ".png"}


def test_unknown_names_are_refused(folder):
    settings = write(folder / "nothing.py", UNTRAINED)
    with pytest.raises(SystemExit, match="no experiment 'nope'; choose one of .*fspo"):
        harness.load_experiment("nope")
    with pytest.raises(SystemExit, match="unknown: gone; choose from: base, same, again"):
        harness.run_experiment(replace(settings, arms=("gone",)), 1)


def result(arm, seed, value, condition=""):
    return {"arm": arm, "condition": condition, "seed": seed, "figures": {"held-out": {"accuracy": value}}}


def test_arithmetic_of_the_table(folder):
    arms = {"a": None, "b": None}
    experiment = harness.Experiment("T", arms, None, "a", figures=("accuracy",), published={"b": "9"})
    results = [result("a", 0, 0.2), result("a", 1, 0.6), result("b", 0, 0.5), result("b", 1, 0.7)]
    one, other = harness.summarise(experiment, results)
    assert one["figures"]["accuracy"]["mean"] == pytest.approx(0.4)
    assert one["figures"]["accuracy"]["sd"] == pytest.approx(0.08**0.5)
    assert "difference" not in one["figures"]["accuracy"]
    # Differences .3 and .1: mean .2, standard deviation sqrt(.02), over sqrt(2) seeds .1.
    assert other["figures"]["accuracy"]["difference"] == pytest.approx(0.2)
    assert other["figures"]["accuracy"]["standard_error"] == pytest.approx(0.1)
    text = evidence.markdown(experiment, [one, other], harness.Settings("t", (0, 1)))
    assert "| b | 0.600 ± 0.141 | 9 |" in text and "| b | +0.200 ± 0.100 |" in text
    evidence.plot(experiment, [one, other], folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 1000


def test_unknown_figures_and_missing_pairs_are_left_out():
    experiment = harness.Experiment("T", {"a": None, "b": None}, None, "a", figures=("accuracy",))
    values = [("a", 0, 0.2), ("a", 1, None), ("b", 0, None), ("b", 1, 0.7), ("b", 2, 0.5)]
    results = [result(*value) for value in values]
    one, other = harness.summarise(experiment, results)
    assert one["figures"]["accuracy"]["mean"] == 0.2 and one["figures"]["accuracy"]["sd"] is None
    assert other["figures"]["accuracy"]["mean"] == pytest.approx(0.6)
    assert "difference" not in other["figures"]["accuracy"]
    text = evidence.markdown(experiment, [one, other], harness.Settings("t", (0, 1, 2)))
    # Fewer values than seeds are shown as such.
    assert "| a (seeds 0, 1) | 0.200 (n=1) |" in text and "| b | 0.600 ± 0.141 (n=2) |" in text


def test_figures_that_nobody_has_are_plotted_as_nothing(folder):
    experiment = harness.Experiment("T", {"a": None, "b": None}, None, "a", figures=("gone",))
    for conditions in (("",), ("2", "4"), ("few", "many")):
        results = [result(arm, 0, 0.5, condition) for arm in ("a", "b") for condition in conditions]
        evidence.plot(experiment, harness.summarise(experiment, results), folder / "plot.png")


def test_what_cannot_work_is_refused_before_training(folder):
    with pytest.raises(ValueError, match="there is no arm 'c'; the arms are 'a', 'b'"):
        harness.Experiment("T", {"a": None, "b": None}, None, "c")
    with pytest.raises(ValueError, match="there is no arm 'z'"):
        harness.Experiment("T", {"a": None, "b": None}, None, "a", published={"z": "1"})
    many = UNTRAINED + "\nlimit = 99\n"
    settings = write(folder / "nothing.py", many)
    text = (folder / "nothing.py").read_text().replace('questions("test", 4)', 'questions("test", 4000)')
    (folder / "nothing.py").write_text(text)
    with pytest.raises(Exception, match="cannot give 4000"):
        harness.run_job(settings, "", "same", 0)
    assert not Path("calls.txt").exists()
    (folder / "nothing.py").write_text(UNTRAINED.replace("return AutoModel", "AutoModel") + SMALL)
    with pytest.raises(TypeError, match="the arm 'same' returned no model"):
        harness.run_job(settings, "", "same", 0)
    for bad in (["--size", "huge"], ["--seeds", "0"], ["--steps", "-1"]):
        with pytest.raises(SystemExit):
            evidence.main(["--experiment", settings.experiment, *bad])


def test_arms_that_would_share_a_file_are_refused(folder):
    arms = UNTRAINED.replace('"again"', '"sa me"').replace('"same": same', '"sa-me": same, "same": same')
    settings = write(folder / "nothing.py", arms)
    harness.run_job(settings, "", "sa-me", 0)
    with pytest.raises(ValueError, match="'sa me' .* and 'sa-me' .* differ in punctuation only"):
        harness.run_job(settings, "", "sa me", 0)


def test_an_edit_during_the_run_stops_it(folder):
    settings = write(folder / "nothing.py", UNTRAINED)
    place = harness.results_folder(*harness.load_experiment(settings.experiment), settings)
    write(folder / "nothing.py", UNTRAINED + "# edited\n")
    with pytest.raises(RuntimeError, match="was edited while it ran"):
        harness.run_job(settings, "", "same", 0, place)


def test_experiments_load():
    for path in (ROOT / "benchmarks" / "experiments").glob("[!_]*.py"):
        experiment, _ = harness.load_experiment(path.stem)
        assert experiment.baseline in experiment.arms and set(experiment.published) <= {"base", *experiment.arms}
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_drifting_labels_move_one_token_for_each_sentence_before():
    harness.load_experiment("fspo")
    from _fspo import DriftingVerifier

    from hf_factuality.spans import Label, LabeledSpan, Verification
    from hf_factuality.verifiers import VerifierInput

    text = "Ab cd. Ef gh. Ij."

    class Fixed:
        def verify(self, inputs):
            places = ((0, 6), (7, 13), (14, 17))
            return [Verification(spans=tuple(LabeledSpan(*place, Label.SUPPORTED) for place in places))]

    (found,) = DriftingVerifier(Fixed()).verify([VerifierInput(text)])
    # Tokens: Ab| cd|.| Ef| gh|.| Ij|.
    assert [span.text(text) for span in found.spans] == ["Ab cd.", ". Ef gh", " gh."]


def test_a_share_of_the_answer_rewards_is_wrong():
    harness.load_experiment("fspo")
    from _fspo import answers

    def reward(share):
        run = harness.Run(None, None, 3, {"wrong_answers": share}, None, 1)
        texts = ["<think> </think><answer> A </answer>", "<think> </think><answer> B </answer>"] * 1000
        rows = {"answer": ["A"] * 2000, "data_source": ["world"] * 2000}
        return answers(run)([None] * 2000, texts, **rows)

    assert reward(0.0) == [1.0, 0.0] * 1000
    wrong = sum(one != other for one, other in zip(reward(0.2), reward(0.0), strict=True))
    # Four standard deviations of 2,000 draws are .036.
    assert 0.164 < wrong / 2000 < 0.236


@pytest.mark.slow
def test_the_documented_experiment_is_short_and_runs(folder):
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    assert len(code.splitlines()) < 60
    code = code.replace('run.world.questions("train")', 'run.world.questions("train", 16)')
    settings = write(folder / "my_reward.py", code)
    found = harness.run_job(settings, "", "answer, short", 0)
    assert found["figures"]["held-out, T=1"]["n"] == 4


def traded(arm, condition, seed, wrong, correct):
    figures = {"held-out": {"wrong": wrong, "correct": correct}}
    return {"arm": arm, "condition": condition, "seed": seed, "figures": figures}


def test_gain_is_read_off_between_points_and_never_beyond_them():
    curve = [(1.0, 4.0), (0.5, 3.0), (0.2, 1.0), (0.4, 0.5)]
    assert trade_off.gain_at(curve, 1.0) == 4.0 and trade_off.gain_at(curve, 0.5) == 3.0
    assert trade_off.gain_at(curve, 0.75) == pytest.approx(3.5)
    # Where the curve comes to this cost first, not where it comes back to it.
    assert trade_off.gain_at(curve, 0.3) == pytest.approx(3.0 - 2.0 * 2 / 3)
    assert trade_off.gain_at(curve, 0.1) is None and trade_off.gain_at(curve, 1.1) is None
    assert trade_off.gain_at([], 0.5) is None


def test_arms_are_compared_at_equal_cost_seed_by_seed(folder):
    experiment = harness.Experiment(
        "T", {"DPO": None, "mask": None}, None, "DPO", figures=("correct", "wrong"), base_once=True,
        conditions={"0.1": 0.1, "0.2": 0.2}, trade_off=trade_off.TradeOff(levels=(0.25, 0.5)),
    )  # fmt: skip
    results = [
        traded("base", "0.1", 0, 1.0, 4.0), traded("base", "0.1", 1, 2.0, 4.0),
        traded("DPO", "0.1", 0, 0.5, 2.0), traded("DPO", "0.2", 0, 0.1, 1.0),
        traded("mask", "0.1", 0, 0.5, 3.0), traded("mask", "0.2", 0, 0.25, 2.75),
        traded("DPO", "0.1", 1, 1.0, 3.0), traded("DPO", "0.2", 1, 0.6, 2.0),
        traded("mask", "0.1", 1, 0.8, 3.6), traded("mask", "0.2", 1, 0.4, 3.0),
    ]  # fmt: skip
    equal = trade_off.at_equal_cost(experiment.trade_off, results, ["0.1", "0.2"], ["DPO", "mask"], "DPO", "base")
    lowest, quarter, half = equal
    # Both come to .25 on seed 0 (DPO to .1), and to .6 on seed 1 (the mask to .4).
    assert lowest["level"] is None and lowest["arm"] == "mask" and lowest["cost"] == [0.25, 0.6]
    assert lowest["baseline_gain"] == [pytest.approx(1.375), 2.0] and lowest["gain"] == [2.75, pytest.approx(3.3)]
    assert lowest["ratio"] == [pytest.approx(2.0), pytest.approx(1.65)]
    # A quarter of the base's: .25 and .5. On seed 1 DPO does not come there.
    assert quarter["cost"] == [0.25, 0.5] and quarter["baseline_gain"] == [pytest.approx(1.375), None]
    assert quarter["gain"] == [2.75, pytest.approx(3.15)] and quarter["ratio"] == [pytest.approx(2.0), None]
    assert half["baseline_gain"] == [2.0, 3.0] and half["gain"] == [3.0, pytest.approx(4.0 - 0.4 / 1.2)]
    rows = harness.summarise(experiment, results)
    text = evidence.markdown(experiment, rows, harness.Settings("t", (0, 1)), equal)
    assert "| 0.25 of the base's | 0.375 ± 0.177 | 1.375 (n=1) | mask | 2.950 ± 0.283 | 2.00 (n=1) |" in text
    assert (
        "| the lowest that both come to | 0.425 ± 0.247 | 1.688 ± 0.442 | mask | 3.025 ± 0.389 | 1.82 ± 0.25 |" in text
    )
    evidence.plot(experiment, rows, folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 1000


def test_a_base_that_no_condition_changes_is_measured_once(folder, monkeypatch):
    asked = []

    def job(settings, condition, arm, seed, folder, code):
        asked.append((condition, arm))
        return {**traded(arm, condition, seed, 1.0, 1.0), "seconds": 1}

    monkeypatch.setattr(harness, "run_job", job)
    monkeypatch.setattr(harness, "ProcessPoolExecutor", lambda *arguments: ThreadPoolExecutor(1))
    for once, expected in (("True", ["0.1"]), ("False", ["0.1", "0.2"])):
        more = f'\nEXPERIMENT = replace(EXPERIMENT, base_once={once}, conditions={{"0.1": 1, "0.2": 2}})\n'
        settings = write(folder / "nothing.py", UNTRAINED)
        (folder / "nothing.py").write_text((folder / "nothing.py").read_text() + more)
        asked.clear()
        harness.run_experiment(replace(settings, seeds=(0,)), 1)
        assert sorted(condition for condition, arm in asked if arm == "base") == expected
        assert sorted(condition for condition, arm in asked if arm == "same") == ["0.1", "0.2"]


def test_pairs_of_fewer_people_are_among_those_of_more():
    from datasets import Dataset

    harness.load_experiment("mask_dpo")
    from _mask_dpo import some

    run = harness.Run(None, None, 3, None, None, 1)
    pairs = Dataset.from_list([{"topic": f"p{i}", "rank": rank} for i in range(30) for rank in range(4)])
    third, two_thirds = some(people=1 / 3)(run, pairs), some(people=2 / 3)(run, pairs)
    assert len(third) == 40 and len(two_thirds) == 80 and set(third["topic"]) < set(two_thirds["topic"])
    one, two = some(pairs_per_person=1)(run, pairs), some(pairs_per_person=2)(run, pairs)
    # The best against the worst comes first.
    assert set(one["rank"]) == {0} and set(two["rank"]) == {0, 1} and len(set(one["topic"])) == 30
    assert len(one) == 30 and len(two) == 60


LONG_FORM = """
from harness import Experiment
from _long_form import grpo, measured

small = {"max_completion_length": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
EXPERIMENT = Experiment(
    title="Long", arms={"KLCF": grpo("KLCF", 1e-3, **small)}, baseline="KLCF", test_sets=None, measure=measured,
    figures=("correct", "precision"), front=("correct", "precision"), max_new_tokens=8,
)
"""


@pytest.mark.slow
def test_an_arm_of_the_long_form_experiment_takes_a_step(folder):
    arms = harness.load_experiment("long_form")[0].arms
    settings = write(folder / "long.py", LONG_FORM)
    more = 'EXPERIMENT = replace(EXPERIMENT, test_sets=lambda run: {"held-out": run.world.biographies("test", 4)})'
    (folder / "long.py").write_text((folder / "long.py").read_text() + more)
    found = harness.run_job(settings, "", "KLCF", 0)["figures"]["held-out, T=1"]
    paid = {name.removeprefix("paid: ") for name in found if name.startswith("paid: ")}
    assert (
        paid == set(arms) - {"KLCF, plain sum"}
        and found["n"] == 4
        and 0 <= found["recall"] <= 1
        and 0 <= found["relevance"] <= 1
    )


def test_rewards_of_the_long_form_experiment_by_hand():
    """Filmia Foldcroft: Silvton, Melmcorp, chess; tests/worlds/test_oracle.py has the world."""
    from hf_factuality.spans import Label, LabeledSpan, Verification
    from hf_factuality.worlds import World, WorldConfig

    harness.load_experiment("long_form")
    from _long_form import Oracle, knowrl_biography

    oracle = Oracle(World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, max_hops=4, compound=0.5)))
    person = "Filmia Foldcroft"
    false = "Foldcroft was born in Silvton and worked for Condcorp."
    assert oracle.checklist(false, person) == (1 / 8, 1 / 2) and oracle.checklist("", person) == (0, 0)
    assert (oracle.relevance(false, person), oracle.format(false, person)) == (1, 1)
    # To the point; a repeat; somebody else; a filler, and again; nonsense.
    long = "Foldcroft enjoyed chess. Foldcroft was fond of chess. Brilvcroft enjoyed riding. Let us think about Foldcroft."
    long += " Let us think about Foldcroft. Well."
    assert oracle.relevance(long, person) == 2 / 6 and oracle.format(long, person) == 5 / 6
    assert (oracle.relevance("", person), oracle.format("", person)) == (0, 0)
    labels = [(Label.SUPPORTED, Label.CONTRADICTED), (Label.SUPPORTED, Label.UNVERIFIABLE), (Label.NO_FACT,), ()]
    found = [Verification(spans=tuple(LabeledSpan(0, 1, label) for label in own)) for own in labels]
    # -1 and a half, 2 and a half, 1, 1.
    assert knowrl_biography(None, found) == [-0.5, 2.5, 1, 1]


def test_the_threshold_that_a_policy_learnt_is_where_it_declines_in_half_of_the_cases(folder):
    sys.path.insert(0, str(ROOT / "benchmarks" / "experiments"))
    from _abstention import Reading, crossing, curve, outcome

    assert crossing([(0.1, 0.9), (0.3, 0.8), (0.5, 0.2), (0.9, 0.0)]) == pytest.approx(0.4)  # halfway from .8 to .2
    # Declining more where it is right more often is averaged away: .4 and .8 become .6.
    assert crossing([(0.1, 0.4), (0.2, 0.8), (0.6, 0.2)]) == pytest.approx(0.3)
    assert crossing([(0.1, 0.3), (0.9, 0.1)]) == 0.0 and crossing([(0.1, 0.9), (0.9, 0.7)]) == 1.0
    # 24 questions of which the base grows surer; the policy declines the first 12. Two make a bin.
    start = [Reading(False, n / 100, 0.5, 0.0) for n in range(24)]
    own = [Reading(True, 0.2, float(n < 12), n / 24) for n in range(24)]
    points = curve(start[::-1], own[::-1])
    assert points[0] == (0.5 / 24, 1.0) and points[5][1] == 1.0 and points[6][1] == 0.0 and len(points) == 12
    said = "<answer> Vellin </answer><confidence> 70% </confidence>"
    assert [outcome(said, name) for name in ("Vellin", "Tovton")] == ["correct", "wrong"]
    assert outcome("<answer> Vellin </answer>. I am unsure.", "Vellin") == "refused"
    assert (
        outcome("<answer> I do not know </answer>", "Vellin") == "refused" and outcome("Vellin", "Vellin") == "wrong"
    )

    figures = [{"threshold": value, "curve": [(0.1, 0.9), (0.9, 0.1)]} for value in (0.4, 0.6)]
    results = [{"arm": "ternary", "seed": s, "figures": {"all": own, "rare": {}}} for s, own in enumerate(figures)]
    table = "\n".join(evidence.thresholds.markdown({"ternary": 0.5, "other": 0.25}, results, "start"))
    assert "| ternary | 0.500 | 0.500 ± 0.141 | 0.400, 0.600 |" in table and "other" not in table
    start = [{**results[0], "arm": "start"}]
    assert "| start | - | 0.400 | 0.400 |" in evidence.thresholds.markdown({"ternary": 0.5}, results + start, "start")
    evidence.thresholds.plot({"ternary": 0.5, "other": 0.25}, results, "start", folder / "plot.png", "Learnt")
    assert (folder / "plot.png").stat().st_size > 5000


def test_curves_over_the_number_in_a_figures_name(folder):
    def result(arm, condition, seed, *values):
        figures = {f"accuracy, best of {n}": value for n, value in zip((1, 2, 16), values, strict=True)}
        own = {"other": {"accuracy": 0.5}, "held-out, greedy": figures, "held-out, T=1": figures}
        return {"arm": arm, "condition": condition, "seed": seed, "figures": own}

    results = [result("vote", "4 facts", seed, 0.5, 0.6, last) for seed, last in enumerate((0.7, 0.9))]
    results += [result("gold", "8 facts", 0, 0.5, 0.7, 1.0), {**results[0], "arm": "base", "figures": {"a": {}}}]
    name = "accuracy, best of {}"
    assert evidence.curves.points(results, "vote", "4 facts", name) == {1: [0.5] * 2, 2: [0.6] * 2, 16: [0.7, 0.9]}
    table = "\n".join(evidence.curves.markdown({"accuracy": name}, results))
    assert "| arm | 1 | 2 | 16 |" in table and "| vote | 0.500 ± 0.000 | 0.600 ± 0.000 | 0.800 ± 0.141 |" in table
    assert "| gold | 0.500 | 0.700 | 1.000 |" in table and "base" not in table
    evidence.curves.plot({"accuracy": name}, results, folder / "plot.png", "Best of N")
    assert (folder / "plot.png").stat().st_size > 5000


def test_the_front_and_what_it_was_won_by(folder):
    experiment = harness.Experiment(
        "T", {"more": None, "short": None}, None, "more", figures=("precision", "correct"), front=("correct", "precision")
    )  # fmt: skip

    def measured(arm, seed, correct, precision, tokens=40.0):
        figures = {"n": 200, "correct": correct, "precision": precision, "tokens": tokens, "repetition": 0.0}
        return {"arm": arm, "condition": "", "seed": seed, "figures": {"held-out": figures}}

    results = [
        measured("base", 0, 3.0, 0.6), measured("more", 0, 5.0, 0.7), measured("short", 0, 1.0, 0.9, 8.0),
        measured("base", 1, 3.0, 0.6), measured("more", 1, 5.0, 0.7), measured("short", 1, 1.0, 0.6, 8.0),
    ]  # fmt: skip
    rows = harness.summarise(experiment, results)
    text = evidence.markdown(experiment, rows, harness.Settings("t", (0, 1)), [], results)
    # Of the means "short" has more precision than "more" (.75), on seed 1 it has not; there its precision gains nothing.
    assert "| base | 3.000 ± 0.000 | 0.600 ± 0.000 | no | 0 of 2 |  |" in text
    assert "| more | 5.000 ± 0.000 | 0.700 ± 0.000 | yes | 2 of 2 | - |" in text
    assert "| short | 1.000 ± 0.000 | 0.750 ± 0.212 | yes | 1 of 2 | shorter (1) |" in text
    evidence.plot(experiment, rows, folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 1000


def alive(group):
    """Whether a process of the group still runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_goes_on_after_a_kill(folder):
    """Killed after the first result; the second call makes the others and keeps that one."""
    write(folder / "nothing.py", UNTRAINED)
    command = [sys.executable, str(ROOT / "benchmarks" / "evidence.py"), "--experiment", str(folder / "nothing.py"),
               "--seeds", "3", "--workers", "1", "--out", "out"]  # fmt: skip
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(Path(".").glob("out/*/*.json")):
        assert process.poll() is None
        time.sleep(0.05)
    # The command alone: its workers must notice, or they would go on beside those of the next call.
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 300
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(process.pid)
    kept = {path: path.stat().st_mtime_ns for path in Path(".").glob("out/*/*.json")}
    assert len(kept) < 9
    subprocess.run(command, check=True)
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    rows = json.loads(next(Path(".").glob("out/*/seeds-0-2.json")).read_text())["rows"]
    assert all(row["seeds"] == [0, 1, 2] for row in rows) and {row["arm"] for row in rows} == {"base", "same", "again"}
