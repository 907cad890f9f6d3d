"""Learn prices of which each device knows one range, and let a device say what houses of all ranges cost."""

from __future__ import annotations

import numpy as np

from examples.serving import begin, release_of, served

SHOWN = 5


def main(arguments: list[str] | None = None) -> None:
    """Run it and print what the device says."""
    example = begin("regression", str(__doc__), arguments)
    release, data = release_of(example), example.data
    with served(example, release) as model:
        answers, there = model.predict(data.x_test)[:, 0], data.y_test[:, 0]
        example.say(f"A device of the cheapest houses serves release {model.version}. Prices in 100,000:")
    order = np.argsort(there)
    for at in order[np.linspace(0, len(order) - 1, SHOWN).astype(int)]:
        example.say(f"  said {answers[at]:.2f}, is {there[at]:.2f}")
    explained = 1 - np.mean(np.square(answers - there)) / there.var()
    example.say(f"R2 {explained:.3f} on houses that nobody trained on.")
    example.say(f"Tables, pictures and the release are in {example.folder}")


if __name__ == "__main__":
    main()
