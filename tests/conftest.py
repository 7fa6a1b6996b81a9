"""Which tests may run beside each other: those of one process each. `alone` is said by hand."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `fast` what can share the cores."""
    for item in items:
        if "unit" in item.path.parts and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.fast)
