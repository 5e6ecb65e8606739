"""Consecutive steps that run the same decodes, as one formula: a leap.

Each decode's context grows by one token a step, and the time of a step is an almost straight function of the sum of
contexts. So the range of sums is cut into panels, and a parabola is fitted to each panel when it is first used; within a
panel the ends of any number of steps follow from one formula. A parabola that is off by more than TOLERANCE is replaced by
ones over narrower panels. Where none of these holds, at a knee of the curve, steps are taken one at a time.
"""

from sim.steptime.attention import DecodeCurve as AttentionCurve
from sim.steptime.protocol import DecodeCurve

PANEL_BITS: tuple[int, ...] = (3, 4, 5, 6)
"""A panel holds the sums of contexts that share their first so many bits; wide panels are tried first."""
TOLERANCE = 3e-10
"""Relative error allowed at the points that check a parabola."""


class Leap:
    """Steps one after the other; `n` of them have ended at `start_s + n * linear_s + n**2 * square_s + n**3 * cube_s`.

    A plain class, since many are made and compiled code reads its attributes faster than a tuple's.
    """

    __slots__ = ("cube_s", "linear_s", "num_steps", "square_s", "start_s")

    def __init__(self, num_steps: int, start_s: float, linear_s: float, square_s: float, cube_s: float) -> None:
        self.num_steps = num_steps
        self.start_s = start_s
        self.linear_s = linear_s
        self.square_s = square_s
        self.cube_s = cube_s


def end_s(leap: Leap, num_steps: int) -> float:
    """The time in seconds at which the first `num_steps` steps of a leap have ended."""
    count = float(num_steps)  # once, where compiled code would do it in each product
    return leap.start_s + count * (leap.linear_s + count * (leap.square_s + count * leap.cube_s))


def after(leap: Leap, num_steps: int) -> Leap:
    """The rest of a leap, without its first `num_steps` steps."""
    linear_s, square_s, cube_s = leap.linear_s, leap.square_s, leap.cube_s
    return Leap(
        leap.num_steps - num_steps,
        end_s(leap, num_steps),
        linear_s + num_steps * (2 * square_s + 3 * num_steps * cube_s),
        square_s + 3 * num_steps * cube_s,
        cube_s,
    )


def num_launched_before(leap: Leap, until_s: float, num_batches_in_flight: int) -> int:
    """How many steps of a leap, at least one, are launched before the time `until_s`.

    With `n` batches in flight a step is launched when the step `n` places before it ends: its predecessor for one batch.
    """
    last = leap.num_steps - num_batches_in_flight
    if last < 0 or until_s <= leap.start_s:
        return 1
    last_end_s = end_s(leap, last)
    if last_end_s < until_s:
        return leap.num_steps
    count = int(last * (until_s - leap.start_s) / (last_end_s - leap.start_s))
    while end_s(leap, count) < until_s:
        count += 1
    while end_s(leap, count - 1) >= until_s:
        count -= 1
    return count + num_batches_in_flight - 1


class Panel:
    """The parabola that gives the seconds of a step for sums of contexts from `first_tokens` to before `end_tokens`.

    With `x` tokens beyond `first_tokens` it is `first_s + slope_s * x + bend_s * x**2`. Tokens are floats here: compiled code
    subtracts them at once, where integers may be large ones.
    """

    __slots__ = ("bend_s", "end_tokens", "first_s", "first_tokens", "is_parabola", "slope_s")

    def __init__(
        self,
        first_tokens: float,
        end_tokens: float,
        first_s: float,
        slope_s: float,
        bend_s: float,
        *,
        is_parabola: bool,
    ) -> None:
        self.first_tokens = first_tokens
        self.end_tokens = end_tokens
        self.first_s = first_s
        self.slope_s = slope_s
        self.bend_s = bend_s
        self.is_parabola = is_parabola


NO_PANEL = Panel(0, 0, 0.0, 0.0, 0.0, is_parabola=False)


class DecodeSteps:
    """Step times of a fixed number of decodes, by the sum of their contexts."""

    def __init__(self, curve: DecodeCurve, num_decodes: int) -> None:
        self.curve = curve
        self.num_decodes = num_decodes
        self._panels: list[dict[int, Panel]] = [{} for _ in PANEL_BITS]  # by their first context
        self._latest = self._before = NO_PANEL

    def at(self, context_tokens: float) -> float:
        """A single step, by the curve itself."""
        curve = self.curve
        if isinstance(curve, AttentionCurve):  # whose method compiled code calls at once, and a protocol's by its name
            return curve.at(context_tokens)
        return curve.at(context_tokens)

    def seconds(self, context_tokens: float) -> float:
        """A single step, by the parabola of its panel where there is one."""
        panel = self._latest
        if not panel.first_tokens <= context_tokens < panel.end_tokens:
            found = self._panel(int(context_tokens))
            if found is None:
                return self.curve.at(context_tokens)
            panel = found
        tokens = context_tokens - panel.first_tokens
        return panel.first_s + tokens * (panel.slope_s + tokens * panel.bend_s)

    def panel(self, context_tokens: float) -> Panel:
        """That by which `seconds` goes; at a knee of the curve one of these contexts alone."""
        found = self._panel(int(context_tokens))
        if found is None:
            first_s = self.curve.at(context_tokens)
            return Panel(context_tokens, context_tokens + 1.0, first_s, 0.0, 0.0, is_parabola=False)
        return found

    def leap(self, context_tokens: int, max_steps: int, start_s: float) -> Leap:
        """The next steps from `start_s` on, `max_steps` or fewer: a leap does not go beyond its panel.

        `context_tokens` is the sum of contexts after the first step; each step adds a token for each decode.
        """
        leap = Leap(1, start_s, 0.0, 0.0, 0.0)
        self.lay(leap, context_tokens, max_steps, start_s)
        return leap

    def lay(self, leap: Leap, context_tokens: int, max_steps: int, start_s: float) -> None:
        """The same, in place of what a leap was."""
        leap.start_s = start_s
        panel = self._panel(context_tokens)
        if panel is None:
            leap.num_steps = 1
            leap.linear_s, leap.square_s, leap.cube_s = self.curve.at(context_tokens), 0.0, 0.0
        else:
            self._lay_within(panel, leap, context_tokens, max_steps)

    def _panel(self, context_tokens: int) -> Panel | None:
        """The widest one with a parabola, most often that of one of the last two looks; None at a knee of the curve."""
        latest = self._latest
        if latest.first_tokens <= context_tokens < latest.end_tokens:
            return latest
        before = self._before
        if before.first_tokens <= context_tokens < before.end_tokens:  # of two slots of as many decodes by turns
            self._latest, self._before = before, latest
            return before
        found = self._find(context_tokens)
        if found is not None:
            self._latest, self._before = found, latest
        return found

    def _find(self, context_tokens: int) -> Panel | None:
        num_bits = context_tokens.bit_length()
        for number, panels in enumerate(self._panels):
            shift = max(0, num_bits - PANEL_BITS[number])
            first_tokens = context_tokens >> shift << shift
            panel = panels.get(first_tokens)
            if panel is None:
                panel = panels[first_tokens] = self._fit(first_tokens, 1 << shift)
            if panel.is_parabola:
                return panel
        return None

    def _lay_within(self, panel: Panel, leap: Leap, context_tokens: int, max_steps: int) -> None:
        """Step i takes a + b i + c i**2 seconds; summed up, these give the coefficients of the leap."""
        slope_s, bend_s = panel.slope_s, panel.bend_s
        num_decodes, tokens = self.num_decodes, context_tokens - panel.first_tokens
        a = panel.first_s + tokens * (slope_s + tokens * bend_s)
        b = num_decodes * (slope_s + 2 * tokens * bend_s)
        c = num_decodes * num_decodes * bend_s
        leap.num_steps = min(max_steps, -((context_tokens - int(panel.end_tokens)) // num_decodes))
        leap.linear_s, leap.square_s, leap.cube_s = a - b / 2 + c / 6, (b - c) / 2, c / 3

    def _fit(self, first_tokens: int, width: int) -> Panel:
        """The parabola through both ends and the middle of a panel, checked at its quarters."""
        at, end_tokens = self.curve.at, first_tokens + width
        first_s, last_s = at(first_tokens), at(end_tokens)
        bend_s = 2 * (first_s - 2 * at(first_tokens + width / 2) + last_s) / width**2
        slope_s = (last_s - first_s) / width - bend_s * width
        quarters = [(tokens, at(first_tokens + tokens)) for tokens in (width / 4, 3 * width / 4)]
        is_parabola = all(
            abs(first_s + tokens * (slope_s + tokens * bend_s) - exact_s) <= TOLERANCE * exact_s
            for tokens, exact_s in quarters
        )
        return Panel(first_tokens, end_tokens, first_s, slope_s, bend_s, is_parabola=is_parabola)
