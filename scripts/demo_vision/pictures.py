"""Draws the pictures: one to four coloured shapes in the cells of a 2 x 2 grid."""

import math
import random
from dataclasses import dataclass
from zlib import crc32

from PIL import Image, ImageDraw

from scripts.demo_model.exchange import Split

COLOURS = {
    "red": (220, 40, 40),
    "green": (30, 150, 60),
    "blue": (40, 70, 220),
    "yellow": (245, 215, 40),
    "black": (20, 20, 20),
    "white": (255, 255, 255),
    "orange": (250, 130, 20),
    "purple": (140, 50, 170),
}
SHAPES = ("circle", "square", "triangle", "star", "cross")
BACKGROUNDS = ((200, 200, 205), (170, 190, 200), (215, 205, 185))
CELLS = 4
# Of the smaller side of a cell. Below 0.55, a star of 18 pixels looks like a circle to the model.
_SIZES = (0.56, 0.88)
_PIXELS_PER_CHANNEL = 12  # how much a colour may differ from its table entry


@dataclass(frozen=True)
class Shape:
    """A drawn shape."""

    colour: str
    kind: str

    @property
    def is_held_out(self) -> bool:
        """Whether no training picture has this colour of this shape: one pair in eight."""
        return crc32(f"{self.colour} {self.kind}".encode()) % 8 == 0


# By cell: from left to right, then from top to bottom
Scene = tuple[Shape | None, ...]


def draw_scene(rng: random.Random, split: Split, most: int = CELLS) -> Scene:
    """Choose 1 to `most` shapes; a held-out scene has at least one held-out pair."""
    while True:
        count = rng.randint(1, most)
        cells: list[Shape | None] = [None] * CELLS
        for cell in rng.sample(range(CELLS), k=count):
            cells[cell] = Shape(rng.choice(tuple(COLOURS)), rng.choice(SHAPES))
        held_out = any(shape.is_held_out for shape in cells if shape)
        if held_out == (split == "held_out"):
            return tuple(cells)


def paint(rng: random.Random, scene: Scene, width: int, height: int) -> Image.Image:
    """Draw the scene. Positions, sizes, proportions and colours vary."""
    picture = Image.new("RGB", (width, height), _near(rng, rng.choice(BACKGROUNDS)))
    pen = ImageDraw.Draw(picture)
    for cell, shape in enumerate(scene):
        if shape is not None:
            box = _box(rng, cell, width / 2, height / 2)
            _draw(pen, shape.kind, box, _near(rng, COLOURS[shape.colour]))
    return picture


Box = tuple[float, float, float, float]
Colour = tuple[int, int, int]


def _near(rng: random.Random, colour: Colour) -> Colour:
    red, green, blue = (
        min(255, max(0, c + rng.randint(-_PIXELS_PER_CHANNEL, _PIXELS_PER_CHANNEL))) for c in colour
    )
    return red, green, blue


def _box(rng: random.Random, cell: int, width: float, height: float) -> Box:
    """The bounding box of a shape within its cell."""
    size = rng.uniform(*_SIZES)
    stretch = rng.uniform(-0.06, 0.06)
    across, down = width * (size + stretch), height * (size - stretch)
    left = width * (cell % 2) + rng.uniform(0, width - across)
    top = height * (cell // 2) + rng.uniform(0, height - down)
    return left, top, left + across, top + down


def _star_points() -> list[tuple[float, float]]:
    points = []
    for i in range(10):
        radius = 0.5 if i % 2 == 0 else 0.2
        angle = math.pi * i / 5
        points.append((0.5 + radius * math.sin(angle), 0.5 - radius * math.cos(angle)))
    return points


_TRIANGLE = [(0.5, 0.0), (1.0, 1.0), (0.0, 1.0)]
_STAR = _star_points()
_CROSS = [
    (0.35, 0), (0.65, 0), (0.65, 0.35), (1, 0.35), (1, 0.65), (0.65, 0.65),
    (0.65, 1), (0.35, 1), (0.35, 0.65), (0, 0.65), (0, 0.35), (0.35, 0.35),
]  # fmt: skip
_POLYGONS = {"triangle": _TRIANGLE, "star": _STAR, "cross": _CROSS}


def _draw(pen: ImageDraw.ImageDraw, kind: str, box: Box, colour: Colour) -> None:
    if kind == "circle":
        pen.ellipse(box, fill=colour)
    elif kind == "square":
        pen.rectangle(box, fill=colour)
    else:
        left, top, right, bottom = box
        points = [(left + (right - left) * x, top + (bottom - top) * y) for x, y in _POLYGONS[kind]]
        pen.polygon(points, fill=colour)
