"""Forecast the load of households with a GRU, and let a device say what the next hours bring."""

from __future__ import annotations

import numpy as np

from examples.serving import begin, release_of, served

SHOWN = 3


def main(arguments: list[str] | None = None) -> None:
    """Run it and print what the device says."""
    example = begin("forecast", str(__doc__), arguments)
    release, data = release_of(example), example.data
    with served(example, release) as model:
        answers = model.predict(data.x_test)
        example.say(f"A device serves release {model.version}. Load in kW, as foreseen and as it came:")
    for at in np.linspace(0, len(answers) - 1, SHOWN).astype(int):
        foreseen, came = (" ".join(f"{value:5.2f}" for value in each[at, :, 0]) for each in (answers, data.y_test))
        example.say(f"  foreseen {foreseen}\n  came     {came}")
    same = np.repeat(data.x_test[:, -1:], data.y_test.shape[1], axis=1)
    errors = [float(np.sqrt(np.mean(np.square(each - data.y_test)))) for each in (answers, same)]
    example.say(f"RMSE {errors[0]:.3f} kW on hours that nobody trained on; the load staying as it is: {errors[1]:.3f}.")
    example.say(f"Tables, pictures and the release are in {example.folder}")


if __name__ == "__main__":
    main()
