"""A button for an act: it asks once more, does it, and says how that ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nicegui import ui

from fleet_web.words import Words
from sojourn.errors import SojournError
from sojourn.text import clean, clean_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class ActButton:
    """Does something only after a second question was answered with yes."""

    def __init__(
        self, label: str, question: str, act: Callable[[], Awaitable[str]], outcome: Words, *, danger: bool = False
    ) -> None:
        """`act` returns what to say afterwards; that, or why it was refused, stands in `outcome`."""
        self._label, self._question, self._act, self._outcome = label, clean(question, 500), act, outcome
        self._danger = danger
        button = Words("button", f"{label} …", type="button").classes("button")
        button.on("click", self._ask)
        if danger:
            button.classes("danger")

    def _ask(self) -> None:
        """Ask once more; each time with a dialog of its own, so that nothing of an earlier one is left."""
        with ui.dialog().props(f'aria-label="{self._label}"') as dialog, ui.element("div").classes("sheet"):
            Words("h2", self._label)
            Words("p", self._question)
            with ui.element("div").classes("controls"):
                yes = Words("button", f"Yes, {self._label.lower()}", type="button").classes("button")
                no = Words("button", "No", type="button", autofocus=True).classes("button")
        if self._danger:
            yes.classes("danger")

        async def confirmed() -> None:
            dialog.close()
            await self._do()

        yes.on("click", confirmed)
        no.on("click", dialog.close)
        dialog.on("hide", dialog.delete)
        dialog.open()

    async def _do(self) -> None:
        request = ui.context.client.request
        who = request.scope.get("sojourn-user") or "somebody on this machine"
        log.info("%s: %s", who, self._question)
        self._outcome.text = f"{self._label} …"
        try:
            self._outcome.text = await self._act()
        except SojournError as error:
            self._outcome.text = f"Refused: {clean_lines(str(error), 2000)}"
