"""RLFH's reward from verifications; values by hand from the published maps."""

from math import log

import pytest
from torch.nn import Linear

from hf_factuality import TokenRewardPPOConfig
from hf_factuality.errors import DataError, JudgingError, SpanError
from hf_factuality.generation import ServerError
from hf_factuality.rewards import RLFHReward, rlfh_verifier
from hf_factuality.spans import RLFH_LABELS, Label, LabeledSpan, Verification
from hf_factuality.verifiers import SelfVerifier, VerifierInput
from hf_factuality.worlds import World, WorldConfig, WorldVerifier
from tests.tables import cases


TEXT = "Ada was born in Leeds and taught there. She died young."
BORN, TAUGHT, DIED = (0, 21), (26, 38), (40, 55)
S, C, U = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE


class Fixed:
    """Gives every completion the same verification."""

    requires_evidence = False

    def __init__(self, *labels, places=(BORN, TAUGHT, DIED), error=None):
        spans = () if error else tuple(LabeledSpan(*place, label) for place, label in zip(places, labels, strict=True))
        self.found, self.seen = Verification(spans=spans, error=error), []

    def verify(self, inputs):
        self.seen += inputs
        return [self.found] * len(inputs)


def paid(reward, text=TEXT, **columns):
    (found,) = reward(completions=[text], completion_ids=[[1]], completion_texts=[text], **columns)
    return found


def test_statements_are_paid_where_they_end():
    # README's maps: correct .45, wrong -1.7, vague -1; g(5) = 1.25; beta 1.2.
    reward = RLFHReward(Fixed(S, C, U), rate=5)
    found = [(end, value) for _, end, value in paid(reward)]
    assert found == [
        (21, pytest.approx(0.45 * 1.25)),
        (38, pytest.approx(-1.7 * 1.25)),
        (39, pytest.approx(1.2 * log(1 + 2.5))),
        (55, pytest.approx(-1.25)),
        (55, pytest.approx(1.2 * log(1 + 1.25))),
    ]
    first = 0.45 * 1.25 - 1.7 * 1.25 + 1.2 * log(3.5)
    second = -1.25 + 1.2 * log(2.25)
    sentence = paid(RLFHReward(Fixed(S, C, U), rate=5, granularity="sentence"))
    assert [(end, value) for _, end, value in sentence] == [(39, pytest.approx(first)), (55, pytest.approx(second))]
    whole = paid(RLFHReward(Fixed(S, C, U), rate=5, granularity="paragraph"))
    assert [(end, value) for _, end, value in whole] == [(55, pytest.approx(first + second))]


def test_what_is_unknown_is_not_paid():
    assert paid(RLFHReward(Fixed(S, None, None), rate=5)) == [
        (20, 21, pytest.approx(0.45 * 1.25)),
        (38, 39, pytest.approx(1.2 * log(2.25))),
    ]
    reward = RLFHReward(Fixed(S, C, U), rate=lambda inputs, found: [[5, None, None]])
    assert [end for _, end, _ in paid(reward)] == [21, 39]
    failing = Fixed(error="server gone")
    assert paid(RLFHReward(failing, rate=5)) is None
    with pytest.raises(JudgingError, match="judged none of the first 2 completions.*server gone"):
        RLFHReward(failing, rate=5)(completions=["a"] * 2, completion_texts=["A b.", "A b."])


def test_a_verifier_that_dies_later_stops_the_run_after_some_batches_in_a_row():
    verifier, down = Fixed(S, C, U), Verification(error="server gone")
    reward = RLFHReward(verifier, rate=5, max_unjudged_batches=2)
    up = verifier.found
    for verifier.found in (up, down, up, down):
        paid(reward)
    assert reward(completions=[], completion_texts=[]) == []  # nothing was asked, which says nothing about the judge
    policy = Linear(1, 1).eval()
    reward.bind_policy(policy)
    assert paid(reward) is None  # of an evaluation, where a batch may be one completion
    policy.train()
    with pytest.raises(JudgingError, match="Fixed judged none .* of 2 batches in a row.*server gone; .* checkpoint"):
        paid(reward)


def test_a_statement_is_paid_once_however_often_it_is_stated():
    text = "Ada won. Ada won. Ben ran. "
    places = ((0, 8), (9, 17), (18, 26))
    once = paid(RLFHReward(Fixed(S, S, C, places=places), rate=5), text)
    # Correct .45, wrong -1.7, g(5) = 1.25, beta 1.2; the second sentence states nothing new and gets default_for_none, 0.
    expected = {8: 0.45 * 1.25 + 1.2 * log(2.25), 17: 0.0, 26: -1.7 * 1.25 + 1.2 * log(2.25)}
    for end, value in expected.items():
        assert sum(worth for _, at, worth in once if at == end) == pytest.approx(value)
    every = paid(RLFHReward(Fixed(S, S, C, places=places), rate=5, repeats="every"), text)
    assert sum(worth for _, at, worth in every if at == 17) == pytest.approx(expected[8])
    # The least favourable verdict counts, and once.
    differing = paid(RLFHReward(Fixed(S, C, C, places=places), rate=5), text)
    assert sum(worth for _, at, worth in differing if at == 8) == pytest.approx(expected[26])
    assert sum(worth for _, at, worth in differing if at == 17) == 0.0


def test_claims_come_before_spans_and_lie_inside_their_sentence():
    verifier = Fixed(S, S, S)
    claims = (LabeledSpan(0, 21, C, claim="Ada is from Leeds."),)
    verifier.found = Verification(spans=verifier.found.spans, claims=claims)
    assert [end for _, end, _ in paid(RLFHReward(verifier, rate=3))] == [21, 39, 55]
    # A claim that ends with the text, after the last sentence's full stop.
    text = "Ada was born. )"
    last = Fixed(S, places=((0, 15),))
    assert [end for _, end, _ in paid(RLFHReward(last, rate=3), text)] == [15, 15]
    # A text without any letter has no sentence.
    assert paid(RLFHReward(Fixed(S, places=((0, 3),)), rate=3), "...") != []


def test_refusals_are_dropped_on_demand():
    text = "I'm sorry, but Ada was born in Leeds. She died young."
    places = ((15, 36), (38, 53))
    kept = paid(RLFHReward(Fixed(C, S, places=places), rate=5), text)
    dropped = paid(RLFHReward(Fixed(C, S, places=places), rate=5, drop_refusals=True), text)
    assert len(kept) == 4 and dropped == kept[2:]


def test_sentences_are_those_of_the_one_reading():
    maps = {
        "truth": dict.fromkeys(RLFH_LABELS, 0.0),
        "informativeness": dict.fromkeys("12345", 0.0),
        "default_for_none": -1.0,
    }
    text = (
        "<think>Ada was born in York.</think># Ada\n\nAda was born in Leeds.[1] When? I don't know when.\n\n"
        "```\nprint('She died.')\n```\n\n## Sources\n[1] A life of Ada."
    )
    # Nothing is found: the statement and the refusal are sentences; heading, question, code, source and reasoning are none.
    ends = [text.index(said) + len(said) for said in ("in Leeds.", "know when.")]
    nothing = RLFHReward(Fixed(places=()), maps, rate=5)
    assert paid(nothing, text) == [(end - 1, end, -1.0) for end in ends]
    # A question is one if the verifier finds a statement in it.
    asked = nothing.verifier.seen[0].completion
    place = (asked.index("When?"), asked.index("When?") + 5)
    found = paid(RLFHReward(Fixed(S, places=(place,)), "readme", rate=5), text)
    assert {end for _, end, value in found if value} == {text.index("When?") + 5}
    # What the prompt opened is reasoning too, and the other scopes are there by name.
    opened = "In York.</think>In Leeds."
    assert [end for _, end, _ in paid(nothing, opened, prompts=["Where? <think>"])] == [len(opened)]
    whole = RLFHReward(Fixed(places=()), maps, rate=5, scope="think")
    assert [end for _, end, _ in paid(whole, opened, prompts=["Where? <think>"])] == [len("In York.")]
    with pytest.raises(SpanError, match="scope 'all' is unknown"):
        RLFHReward(Fixed(places=()), rate=5, scope="all")


def test_whoever_rates_is_shown_what_is_judged():
    shown = []
    reward = RLFHReward(
        Fixed(S, places=((0, 9),)), rate=lambda inputs, found: shown.extend(zip(inputs, found, strict=True)) or [[5]]
    )
    text = "<think>In York.</think>In Leeds."
    assert [end for _, end, _ in paid(reward, text)] == [len(text), len(text)]
    ((item, found),) = shown
    assert item.completion == "In Leeds." and found.spans[0].text(item.completion) == "In Leeds."


def test_figures_are_logged():
    logged = {}
    reward = RLFHReward(Fixed(S, C, S), rate=5)
    paid(reward, log_metric=lambda name, value: logged.setdefault(name, value))
    assert logged["rlfh/statements"] == 3 and logged["rlfh/accuracy"] == pytest.approx(2 / 3)
    assert logged["rlfh/reward/supported"] == pytest.approx(2 * 0.45 * 1.25)
    assert logged["rlfh/reward/contradicted"] == pytest.approx(-1.7 * 1.25)
    assert logged["rlfh/reward/unverifiable"] == 0 and logged["rlfh/refused"] == 0


def test_the_row_reaches_the_verifier():
    verifier = Fixed(S, S, S)
    paid(RLFHReward(verifier, rate=5), question=["Who?"], evidence=[["A page."]], person=["Ada"])
    (item,) = verifier.seen
    assert (item.question, item.evidence, item.row["person"]) == ("Who?", ("A page.",), "Ada")
    verifier.requires_evidence = True
    assert paid(RLFHReward(verifier, rate=5), evidence=[[]]) is None
    with pytest.raises(DataError, match="evidence column 'evidence' must hold text"):
        paid(RLFHReward(verifier, rate=5), evidence=[7])
    with pytest.raises(DataError, match="needs completion_texts"):
        RLFHReward(verifier, rate=5)(completions=[TEXT])


def test_the_judge_of_a_verifier_rates_what_it_judged():
    class Judge:
        def assess(self, items):
            self.asked = [item.statement for item in items]
            return [5, 1, None]

    verifier = Fixed(S, S, S)
    verifier.judge = Judge()
    found = paid(RLFHReward(verifier))
    assert verifier.judge.asked == [TEXT[slice(*place)] for place in (BORN, TAUGHT, DIED)]
    # README's g(1) = -.2 counts by its size for the truth: .45 * .2.
    assert found[0][2] == pytest.approx(0.45 * 1.25) and found[1][2] == pytest.approx(0.45 * 0.2)
    assert found[2][2] == pytest.approx(1.2 * log(1 + 1.25 - 0.2)) and len(found) == 3


@pytest.mark.parametrize("granularity", ["sentence", "slot"])
def test_the_world_rates_its_own_spans(granularity):
    world = World(WorldConfig(num_people=20))
    person = world.people[0]
    verifier = WorldVerifier(world, granularity=granularity)
    relations = {len(world.values[relation.name]): relation for relation in world.relations if not relation.rumour}
    # A fact of 80 possible values is rated 5, of 40 it is 4, of 12 it is 3; said again it is worth 1.
    text = " ".join(world.evidence(person, relations[size], 1)[0] for size in (80, 40, 12, 40))
    item = VerifierInput(text, world.request(person))
    (found,) = verifier.verify([item])
    assert verifier.rate([item], [found]) == [[5, 4, 3, 1]]


def test_self_judging_binds_the_policy(monkeypatch):
    reward = RLFHReward(SelfVerifier(), raises=(ServerError,))
    bound = []
    monkeypatch.setattr("hf_factuality.rewards._rows.bind_policy", lambda *given: bound.append(given) or True)
    assert reward.bind_policy("policy", "tokenizer") and bound == [(reward.verifier, "policy", "tokenizer")]
    # A hanging thread would hold the model.
    assert reward.judging.guard.timeout is None and reward.judging.guard.raises == (ServerError,)
    monkeypatch.undo()
    assert not RLFHReward(Fixed(S, S, S), rate=3).bind_policy("policy")


@cases("judges", "rlfh_refused", "given", "error")
def test_refused_at_construction(given, error):
    with pytest.raises(ValueError, match=error):
        RLFHReward(Fixed(S, S, S), **given)


def test_the_rollout_server_judges_and_nothing_it_says_is_kept(tmp_path):
    """The policy on that server changes, so an answer of yesterday's policy must not be given today."""
    args = TokenRewardPPOConfig(str(tmp_path), use_vllm=True, vllm_mode="server", vllm_server_port=8765, bf16=False)
    client = rlfh_verifier("org/policy", "rollout", training_args=args).judge.client
    assert (client.server, client.model, client.cache) == ("http://0.0.0.0:8765/v1", "org/policy", None)
    args.vllm_server_base_url = "http://host:1/"
    assert rlfh_verifier("org/policy", "rollout", training_args=args).judge.client.server == "http://host:1/v1"
    assert rlfh_verifier("org/judge", "http://host:2/v1").judge.client.cache is not None
    args.vllm_mode = "colocate"
    for without in (args, None):
        with pytest.raises(ValueError, match="there is none: set use_vllm=True and vllm_mode='server'"):
            rlfh_verifier("org/policy", "rollout", training_args=without)
