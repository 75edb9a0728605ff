"""The colours of the style sheet of the charts."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from celery_dynbeat import flower
from celery_dynbeat.flower.charts.svg import Tone
from tests.support.colours import DEFICIENCIES, contrast, difference

STYLES = (Path(flower.__file__).parent / "static" / "charts.css").read_text()
# Flower's cards.
SURFACES = {"light": "#ffffff", "dark": "#1b2219"}
GRAPHICS = [*Tone, "now", "level-1", "level-2", "level-3", "level-4"]


def palette(theme):
    """Return the colours of a theme by name. Dark replaces some of the light ones."""
    selectors = [":root", '[data-bs-theme="dark"]'][: 1 if theme == "light" else 2]
    blocks = [STYLES.split(f"{selector} {{")[1].split("}")[0] for selector in selectors]
    return dict(re.findall(r"--dynbeat-([\w-]+): (#\w{6});", "".join(blocks)))


@pytest.mark.parametrize("theme", SURFACES)
@pytest.mark.parametrize("name", GRAPHICS)
def test_graphics_have_the_contrast_that_wcag_asks_for(theme, name):
    assert contrast(palette(theme)[name], SURFACES[theme]) >= 3


@pytest.mark.parametrize("theme", SURFACES)
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_success_and_failure_differ_with_a_colour_vision_deficiency(theme, deficiency):
    colours = palette(theme)

    # Flower's own green and red differ by 5 with deuteranopia.
    shown = difference(colours["success"], colours["failure"], deficiency=deficiency)
    assert shown > 25


@pytest.mark.parametrize("theme", SURFACES)
def test_days_with_more_runs_have_more_contrast(theme):
    colours = palette(theme)
    ratios = [contrast(colours[f"level-{n}"], SURFACES[theme]) for n in (1, 2, 3, 4)]

    assert all(later > 1.3 * earlier for earlier, later in pairwise(ratios))


def test_the_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
