"""The deep MLP, trained by a hand-written loop; see --help."""

import sys
from pathlib import Path

import training

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
example = __import__("deep_mlp")


if __name__ == "__main__":
    training.main(example, lambda model: model.layers)
