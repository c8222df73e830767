"""Kinds of pages, and what another program adds to the dashboard's application."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dash import Dash
from dash.development.base_component import Component
from fastapi import APIRouter

from autotune.dashboard.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A kind of page.

    Attributes:
        pattern: of its addresses.
        build: returns the page; takes the source, the visit and the groups of the pattern.
        title: returns the heading; takes the source and the groups of the pattern.
    """

    pattern: str
    build: Callable[..., Component]
    title: Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What another program adds to the dashboard's application.

    Attributes:
        routers: routes beside those of the API.
        pages: kinds of pages.
        menu: names and addresses of pages for the menu.
        callbacks: functions that add the callbacks of the pages.
    """

    routers: Sequence[APIRouter] = ()
    pages: Sequence[Page] = ()
    menu: Sequence[tuple[str, str]] = ()
    callbacks: Sequence[Callable[[Dash, Source], None]] = ()


NO_EXTRAS = Extras()
