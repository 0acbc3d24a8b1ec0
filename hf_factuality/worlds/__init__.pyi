# Public names, which load on first use.
from hf_factuality.worlds.evaluate import WorldEvaluation as WorldEvaluation, evaluate_world as evaluate_world
from hf_factuality.worlds.language import Relation as Relation
from hf_factuality.worlds.lm import build_world_model as build_world_model, load_world as load_world
from hf_factuality.worlds.noisy import NoisyVerifier as NoisyVerifier
from hf_factuality.worlds.oracle import WorldSentence as WorldSentence, WorldVerifier as WorldVerifier
from hf_factuality.worlds.sizes import SIZES as SIZES, WorldModelConfig as WorldModelConfig
from hf_factuality.worlds.tokenizer import build_world_tokenizer as build_world_tokenizer
from hf_factuality.worlds.world import Person as Person, World as World, WorldConfig as WorldConfig
