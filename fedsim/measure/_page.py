"""Fills a page's template: one file with its figures, its palette and plotly.js inside."""

import json
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from fedsim.measure import _plotly, units
from fedsim.measure._chart import DARK, HEAT_DARK, HEAT_LIGHT, LIGHT, Chart
from fedsim.measure._files import plain_json


def render(template: str, charts: Sequence[Chart], **values: Any) -> str:
    """Return a page that needs no network and no other file.

    Args:
        template: name of a file in ``templates/`` that extends ``base.html``.
        charts: whose figures the page's places name by their keys.
        values: the template's own.
    """
    loader = jinja2.PackageLoader("fedsim.measure", "templates")
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    page.filters["s"] = units.show_s
    return page.get_template(template).render(
        figures=_script_json({chart.key: _plotly.figure(chart) for chart in charts}),
        palette=_script_json({"light": LIGHT, "dark": DARK, "heat": {"light": HEAT_LIGHT, "dark": HEAT_DARK}}),
        plotly_js=Markup(_plotly.plotly_js()),
        **values,
    )


def _script_json(value: Any) -> Any:
    """Return JSON that may stand inside a script element: no tag can begin in it."""
    text = json.dumps(plain_json(value), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
