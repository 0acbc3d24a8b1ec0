"""The learning rates that abstention.py was tuned over: seeds 0 and 1, the same two tries for every arm.

The rule, written before any was run: on the facts about popular and rare people together, mean over the two seeds, SFT and
R-Tuning take the rate with the higher AP (greedy), an arm of RL that with more of its own reward at temperature 1, and RLCR and
DCPO that with more of RLCR's. The tests are of people who are held out there.
"""

from dataclasses import replace

from _abstention import arms
from abstention import EXPERIMENT as REPORT


EXPERIMENT = replace(REPORT, arms=arms(None), steps=100, conditions={".0001": 1e-4, ".0003": 3e-4}, base_once=True)
