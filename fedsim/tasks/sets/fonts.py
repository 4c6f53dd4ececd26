"""Letters and digits of many fonts: 62 classes, one font a natural client. Rendered, not handwriting."""

import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset
from fedsim.tasks.errors import BadOption, DataUnavailable

_FOLDER = Path("/usr/share/fonts/truetype/aenigma")
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIDE = 28
_INNER = 24
_DRAWN_AT = 48


def _missing() -> str:
    if not any(_FOLDER.glob("*.ttf")):
        return f"{_FOLDER} holds no fonts: the set is drawn from them; run `apt-get install fonts-aenigma`"
    return ""


@register_dataset(
    "fonts", "glyphs of 464 fonts, 28x28 grey, 62 classes, one font a client (rendered)", missing=_missing
)
def load_fonts(num_fonts: int = 0, test_fraction: float = 1 / 6, seed: int = 0, folder: str = "") -> Dataset:
    """Draw 62 characters of every font as uint8; the test rows are fonts that no client has.

    A font that draws a character empty, or all of them alike, is left out. Many fonts draw lower case as capitals, so
    accuracy has a ceiling well under 1. Every client has exactly 62 examples.

    Args:
        num_fonts: take so many fonts, chosen by the seed; 0 for all.
        test_fraction: share of the fonts that is kept for testing, in (0, 1).
        seed: decides which fonts test.
        folder: where the .ttf files are; empty for Debian's.

    Raises:
        DataUnavailable: there are no fonts.
        BadOption: a number is out of range, or too few fonts are left for both splits.
    """
    paths = sorted((Path(folder) if folder else _FOLDER).glob("*.ttf"))
    if not paths:
        raise DataUnavailable(f"{folder} holds no .ttf files: name a folder of fonts" if folder else _missing())
    if not 0 < test_fraction < 1 or num_fonts < 0:
        raise BadOption(f"test_fraction {test_fraction} must lie in (0, 1), num_fonts {num_fonts} must not be negative")
    glyphs: list[NDArray[np.uint8]] = []
    for number in np.random.default_rng(seed).permutation(len(paths)):
        if num_fonts and len(glyphs) == num_fonts:
            break
        drawn = draw_font(paths[number])
        if drawn is not None:
            glyphs.append(drawn)
    tests = max(round(test_fraction * len(glyphs)), 1)
    if len(glyphs) - tests < 1:
        raise BadOption(f"{len(glyphs)} usable fonts: at least 2 are needed, for training and testing; take more")
    return _dataset(np.stack(glyphs), tests, str(paths[0].parent))


def _dataset(glyphs: NDArray[np.uint8], tests: int, folder: str) -> Dataset:
    """Make a data set of ``(fonts, 62, 28, 28)`` glyphs; the first `tests` fonts are the test split."""
    x = glyphs.reshape(-1, 1, _SIDE, _SIDE)
    font, label = np.divmod(np.arange(len(x), dtype=np.int64), len(CHARACTERS))
    cut = tests * len(CHARACTERS)
    return Dataset(
        name="fonts",
        train_x=x[cut:],
        train_y=label[cut:],
        test_x=x[:cut],
        test_y=label[:cut],
        num_classes=len(CHARACTERS),
        task_kind="image",
        input_shape=(1, _SIDE, _SIDE),
        client_ids=font[cut:] - tests,
        source=f"rendered from the fonts in {folder}",
        licence="fonts-aenigma: redistribution and change allowed with attribution to Brian Kent",
    )


def draw_font(path: Path) -> NDArray[np.uint8] | None:
    """Return the glyphs of :data:`CHARACTERS`, uint8, ``(62, 28, 28)``; ``None`` if one is empty or all are alike.

    Each glyph is drawn at 48 points, cut to its ink, scaled to fit 24 x 24 with its proportions, and centred.
    """
    from PIL import Image, ImageFont

    try:
        font = ImageFont.truetype(str(path), _DRAWN_AT)
    except OSError:
        return None
    out = np.zeros((len(CHARACTERS), _SIDE, _SIDE), np.uint8)
    for canvas, character in zip(out, CHARACTERS, strict=True):
        mask = font.getmask(character, mode="L")
        width, height = mask.size
        ink = Image.frombytes("L", (width, height), bytes(mask)) if width and height else None
        box = ink.getbbox() if ink else None
        if ink is None or box is None:
            return None
        ink = ink.crop(box)
        scale = _INNER / max(ink.size)
        ink = ink.resize((max(round(ink.width * scale), 1), max(round(ink.height * scale), 1)), Image.Resampling.BOX)
        left, top = (_SIDE - ink.width) // 2, (_SIDE - ink.height) // 2
        canvas[top : top + ink.height, left : left + ink.width] = np.asarray(ink)
    return None if (out == out[0]).all() else out
