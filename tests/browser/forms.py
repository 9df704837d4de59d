"""The form of a connection, as a user sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.get_provider_info import get_provider_info

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TYPES = {item["connection-type"]: item for item in get_provider_info()["connection-types"]}


class Form:
    """The dialog of one connection."""

    def __init__(self, page: Page, conn_type: str) -> None:
        self._page = page
        self.conn_type = conn_type
        self.fields: dict[str, dict[str, Any]] = TYPES[conn_type]["conn-fields"]
        self.dialog = page.get_by_role("dialog")
        self._section = ""

    def add(self, conn_id: str) -> None:
        """Open an empty form of this type."""
        self._show_connections()
        self._page.get_by_role("button", name="Add Connection").first.click()
        self.dialog.locator("input[name=connection_id]").fill(conn_id)
        self.dialog.get_by_role("combobox").fill(TYPES[self.conn_type]["hook-name"])
        self._page.get_by_role("option", name=TYPES[self.conn_type]["hook-name"], exact=True).click()

    def edit(self, conn_id: str) -> None:
        """Open the form of a saved connection."""
        self._show_connections()
        row = self._page.get_by_role("row").filter(has=self._page.get_by_text(conn_id, exact=True))
        row.get_by_role("button", name="Edit Connection").click()
        self.dialog.get_by_role("button", name="Save").wait_for()

    def open_section(self, name: str) -> None:
        """Open a section if it is closed; Airflow then closes the others."""
        from playwright.sync_api import expect

        if name == self._section:
            return
        head = self.dialog.get_by_role("button", name=name, exact=True)
        if head.get_attribute("aria-expanded") != "true":
            head.click()
            # Until then, the section that was open before still seems to be open.
            expect(head).to_have_attribute("aria-expanded", "true", timeout=60_000)
        self._section = name

    def fill(self, name: str, value: Any) -> None:
        """Enter a value, as its kind of field needs it."""
        schema, field = self.fields[name]["schema"], self.field(name)
        kind = kind_of(schema)
        if "enum" in schema:
            field.locator("input").first.click()
            shown = schema["values_display"].get(str(value), str(value))
            self._page.get_by_role("option", name=shown, exact=True).click()
        elif kind == "boolean":
            if value != (field.get_attribute("data-state") == "checked"):
                field.click()
        elif kind == "array" and schema.get("items", {}).get("type") == "string":
            field.fill("\n".join(value))
        elif kind in ("object", "array"):
            self.type_json(name, json.dumps(value))
        else:
            field.fill(str(value))
            field.blur()

    def type_json(self, name: str, text: str) -> None:
        """Type into a field for JSON."""
        self.field(name).locator(".view-lines").click()
        self._page.keyboard.press("Control+A")
        self._page.keyboard.insert_text(text)
        # The editor has added closing brackets and quotes after the cursor.
        self._page.keyboard.press("Control+Shift+End")
        self._page.keyboard.press("Delete")

    def field(self, name: str) -> Locator:
        """Return the part of a field that takes its value, in its open section."""
        schema = self.fields[name]["schema"]
        self.open_section(schema.get("section", "Extra Fields"))
        kind = kind_of(schema)
        if kind in ("integer", "number"):
            return self.dialog.locator(f'input[name="element_{name}"]')
        if kind == "boolean":
            return self.dialog.locator(f'[id="switch:element_{name}"]')
        return self.dialog.locator(f'[id="element_{name}"]')

    def save(self) -> None:
        """Save, and wait until the dialog has closed."""
        self.dialog.get_by_role("button", name="Save").click()
        # Airflow's message appears here, above the buttons of some row, and stays as long as the pointer is over it.
        self._page.mouse.move(0, 0)
        self.dialog.wait_for(state="detached")

    def close(self) -> None:
        """Close the dialog without saving."""
        self._page.keyboard.press("Escape")
        self.dialog.wait_for(state="detached")

    def _show_connections(self) -> None:
        self._section = ""
        # The code of the page takes seconds on a busy host, and serves all forms.
        if not self._page.url.endswith("/connections"):
            self._page.goto("/connections")

    @property
    def can_save(self) -> bool:
        """Whether the button Save is enabled."""
        return self.dialog.get_by_role("button", name="Save").is_enabled()


def kind_of(schema: dict[str, Any]) -> str:
    """Return the type of a field, without "null"."""
    types = schema["type"]
    (kind,) = [each for each in ([types] if isinstance(types, str) else types) if each != "null"]
    return str(kind)


def example_of(name: str, schema: dict[str, Any]) -> Any:
    """Return a value that the form accepts."""
    if "enum" in schema:
        return next(value for value in reversed(schema["enum"]) if value is not None)
    kind = kind_of(schema)
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    numbers = {"integer": int(low) + 2, "number": low + 1.5}
    if kind in numbers:
        return min(numbers[kind], schema.get("maximum", numbers[kind]))
    if kind == "boolean":
        return True
    if kind == "object":
        return {"key": "a value"}
    if kind == "array":
        examples = {"string": ["one", "two"], "object": [{"key": "a value"}]}
        types = schema["items"]["type"]
        return [value for each in ([types] if isinstance(types, str) else types) for value in examples[each]]
    return f"text of {name}"
