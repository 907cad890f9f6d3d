"""Learn prices of which each device has one range, and predict prices of all ranges on one device."""

from __future__ import annotations

import numpy as np

from examples.serving import begin, release_of, served

SHOWN = 5


def main(arguments: list[str] | None = None) -> None:
    """Run it and print the device's predictions."""
    example = begin("regression", str(__doc__), arguments)
    release, data = release_of(example), example.data
    with served(example, release) as model:
        predicted, actual = model.predict(data.x_test)[:, 0], data.y_test[:, 0]
        example.print(f"A device that has the cheapest houses serves release {model.version}. Prices in 100,000:")
    order = np.argsort(actual)
    for at in order[np.linspace(0, len(order) - 1, SHOWN).astype(int)]:
        example.print(f"  predicted {predicted[at]:.2f}, actual {actual[at]:.2f}")
    explained = 1 - np.mean(np.square(predicted - actual)) / actual.var()
    example.print(f"R2 {explained:.3f} on houses that were not in the training data.")
    example.print(f"Tables, plots and the release are in {example.folder}")


if __name__ == "__main__":
    main()
