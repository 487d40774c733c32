"""Sites in one process: computations that stop at each sum until all have given theirs."""

from functools import reduce
from queue import SimpleQueue
from threading import Thread

from scbatchprox.errors import BadValue
from scbatchprox.federated import Totals


class _Site:
    """A computation on a thread of its own, which only runs while the caller waits for its next sum."""

    def __init__(self, computation):
        self._given, self._answers = SimpleQueue(), SimpleQueue()
        self._thread = Thread(target=self._run, args=[computation])
        self.ended, self.result = False, None

    def _run(self, computation):
        try:
            self._given.put((True, computation(self._add_up), None))
        except BaseException as error:
            self._given.put((True, None, error))

    def _add_up(self, own):
        self._given.put((False, own, None))
        answer = self._answers.get()
        if answer is None:
            raise SystemExit
        return answer

    def next(self, answer):
        """What it gives to the next sum, if it does not end before."""
        if answer is None:
            self._thread.start()
        else:
            self._answers.put(answer)
        self.ended, found, error = self._given.get()
        if error is not None:
            raise error
        self.result = found
        return found

    def stop(self):
        self._answers.put(None)
        if self._thread.ident is not None:
            self._thread.join()


def in_step(computations, added):
    """The results of computations, each given a function that adds up what all give: ``added(given)``."""
    sites, answer = [_Site(one) for one in computations], None
    try:
        while True:
            given = [site.next(answer) for site in sites]
            if all(site.ended for site in sites):
                return [site.result for site in sites]
            if any(site.ended for site in sites):
                raise BadValue("Expected all sites in the same round, found some in another.")
            answer = added(given)
    finally:
        for site in sites:
            site.stop()


def in_process(kinds):
    """The results of all sites, whose sums are added without masks."""
    return in_step(kinds, _totals)


def _totals(given):
    if len({(part.fixed, len(part.values)) for part in given}) > 1:
        raise BadValue("Expected all sites in the same round, found some in another.")
    fixed = given[0].fixed
    return Totals(fixed, reduce(fixed.added, (part.limbs for part in given)))
