"""Contrast of colours, and how people with a colour vision deficiency see them."""

import math

_SRGB_LIMIT = 0.04045
_LAB_LIMIT = 216 / 24_389
#: Machado, Oliveira and Fernandes, 2009, severity 1.0, for linear red, green and blue.
DEFICIENCIES = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
#: From linear sRGB to CIE XYZ, relative to the white point D65.
_TO_XYZ = (
    (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
    (0.2126, 0.7152, 0.0722),
    (0.0193 / 1.089, 0.1192 / 1.089, 0.9505 / 1.089),
)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2 between two colours such as ``#ffffff``."""
    dark, light = sorted(_times(_TO_XYZ[1:2], _linear(colour))[0] for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def difference(one: str, other: str, *, deficiency: str) -> float:
    """Return the CIE 1976 distance of two colours with a deficiency. 2 is just noticeable."""
    matrix = DEFICIENCIES[deficiency]
    seen = (_times(matrix, _linear(colour)) for colour in (one, other))
    return math.dist(*(_lab([min(max(part, 0), 1) for part in colour]) for colour in seen))


def _linear(colour: str) -> list[float]:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return [
        part / 12.92 if part <= _SRGB_LIMIT else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]


def _lab(linear: list[float]) -> tuple[float, float, float]:
    x, y, z = (
        part ** (1 / 3) if part > _LAB_LIMIT else part * 841 / 108 + 4 / 29
        for part in _times(_TO_XYZ, linear)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]
