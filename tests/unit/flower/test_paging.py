"""The links between the pages of a list, which are in the URL."""

from urllib.parse import parse_qs, urlencode

import pytest

from celery_dynbeat.flower.base.page import MAX_BACK, SIZES, PagePlace, paging


def here(**changes):
    return "?" + urlencode({k: v for k, v in changes.items() if v is not None}, doseq=True)


def address_of(link):
    query = parse_qs(link.removeprefix("?"), keep_blank_values=True)
    return PagePlace.of(
        after=query.get("after", [""])[0],
        back=query.get("back", []),
        size=query.get("size", [""])[0],
    )


def follow(cursors, place=None):
    """Follow the links "next" from the first page; each page ends with a cursor."""
    place = place or PagePlace.of(after="", back=(), size="")
    for cursor in cursors:
        place = address_of(paging(place, cursor=cursor, here=here).next)
    return place


def test_previous_leads_back_to_each_page():
    place, seen = follow("abcd"), []
    while (link := paging(place, cursor="x", here=here).previous) is not None:
        place = address_of(link)
        seen.append(place.after)

    assert seen == ["c", "b", "a", None]


def test_of_many_pages_only_the_newest_are_on_the_way_back():
    place = follow([f"c{number}" for number in range(MAX_BACK + 5)])

    assert len(place.back) == MAX_BACK
    assert place.back[-1] == f"c{MAX_BACK + 3}"
    assert paging(place, cursor=None, here=here).first == "?"


@pytest.mark.parametrize("size", ["", "7", "x", "-1", "٢٥", "9" * 5_000])
def test_an_unknown_size_means_the_smallest(size):
    assert PagePlace.of(after="", back=(), size=size).size == SIZES[0]
