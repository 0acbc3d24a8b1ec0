"""How much of what a model knows is in a checklist of 1, 2, 4, ... samples.

    python benchmarks/checklist_samples.py

The closed world's model answers requests for biographies as `hf-factuality build-checklists` samples it, and the oracle reads
the answers: facts of the person that at least one of the first N samples states truly and plainly, and the statements that
lexical merging leaves of these, since a fact may be worded in several ways.
"""

import argparse
import os
from collections import Counter


os.environ.setdefault("CI", "1")

from hf_factuality.data import ChecklistConfig, SamplingConfig, TransformersSampler
from hf_factuality.methods.klcf.data import choose_items
from hf_factuality.methods.klcf.statements import SampledClaim
from hf_factuality.worlds import SIZES, WorldVerifier, build_world_model, load_world


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--people", type=int, default=100, help="drawn evenly from the most to the least popular")
    parser.add_argument("--samples", type=int, default=32)
    args = parser.parse_args()
    folder = str(build_world_model(size=args.size))
    world = load_world(folder)
    oracle = WorldVerifier(world)
    sampler = TransformersSampler(
        folder,
        config=SamplingConfig(num_samples=args.samples, temperature=0.8, top_k=40, max_new_tokens=120),
        batch_size=256,
    )
    people = world.people[:: len(world.people) // args.people][: args.people]
    requests = [[{"role": "user", "content": world.request(person)}] for person in people]
    facts, items = Counter(), Counter()
    sizes = [2**power for power in range(args.samples.bit_length())]
    for person, answers in zip(people, sampler.sample(requests, 0), strict=True):
        read = [oracle.read(answer.text, world.request(person)) for answer in answers]
        for size in sizes:
            stated = [(n, s) for n in range(size) for s in read[n]]
            facts[size] += len({s.relation for _, s in stated if s.kind == "fact" and s.label == "supported"})
            claims = [
                SampledClaim(n, answers[n].text[s.start : s.end], s.label) for n, s in stated if s.kind == "fact"
            ]
            items[size] += len(choose_items(claims, ChecklistConfig(max_items=10**6), Counter()))
    print(
        "| samples | true facts per person | share of those of all samples | statements per person |\n|---|---|---|---|"
    )
    for size in sizes:
        share = facts[size] / facts[sizes[-1]]
        print(f"| {size} | {facts[size] / len(people):.2f} | {share:.0%} | {items[size] / len(people):.2f} |")


if __name__ == "__main__":
    main()
