"""Forecast the load of households with a GRU, from a simulation to a device that predicts the next hours."""

from __future__ import annotations

import numpy as np

from examples.serving import begin, release_of, served

SHOWN = 3


def main(arguments: list[str] | None = None) -> None:
    """Run it and print the device's predictions."""
    example = begin("forecast", str(__doc__), arguments)
    release, data = release_of(example), example.data
    with served(example, release) as model:
        predictions = model.predict(data.x_test)
        example.print(f"A device serves release {model.version}. Load in kW, predicted and actual:")
    for at in np.linspace(0, len(predictions) - 1, SHOWN).astype(int):
        predicted, actual = (
            " ".join(f"{value:5.2f}" for value in each[at, :, 0]) for each in (predictions, data.y_test)
        )
        example.print(f"  predicted {predicted}\n  actual    {actual}")
    same = np.repeat(data.x_test[:, -1:], data.y_test.shape[1], axis=1)
    errors = [float(np.sqrt(np.mean(np.square(each - data.y_test)))) for each in (predictions, same)]
    example.print(
        f"RMSE {errors[0]:.3f} kW on hours that were not in the training data; with a constant load: {errors[1]:.3f}."
    )
    example.print(f"Tables, plots and the release are in {example.folder}")


if __name__ == "__main__":
    main()
