"""The colours and marks of charts: a name has the same ones in every run and on every page.

All colours have a contrast of at least 3 on the light and on the dark background.
"""

from zlib import crc32

BASELINE = "#5c7cfa"
WINNER = "#e8590c"
TRIAL = "#868e96"
FRONT = "#0ca678"
FAILED = "#f03e3e"
BETTER = "#2f9e44"
WORSE = "#f03e3e"
LINE = "#228be6"
GRID = "rgba(134, 142, 150, 0.25)"

# The parts of a step, by the words that pages have for them.
PARTS = {
    "waiting for data": "#f03e3e",
    "copying to the device": "#f08c00",
    "forward": "#228be6",
    "backward": "#7048e8",
    "optimizer": "#0ca678",
    "communication": "#e64980",
    "idle device": "#868e96",
    "other": "#a0705a",
    "computing and the rest": "#1c7ed6",
}
PALETTE = (
    "#228be6",
    "#e8590c",
    "#0ca678",
    "#be4bdb",
    "#f03e3e",
    "#7048e8",
    "#a0705a",
    "#e64980",
    "#74a016",
    "#0f9ab0",
)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "pentagon", "hexagram")


def colour_of(name: str) -> str:
    """Return the colour of a name, such as a part of the step or `precision=bf16`."""
    return PARTS.get(name) or PALETTE[crc32(name.encode()) % len(PALETTE)]


def symbol_of(name: str) -> str:
    """Return the mark of a name; names that share a colour mostly differ in it."""
    return SYMBOLS[crc32(name.encode()) // len(PALETTE) % len(SYMBOLS)]
