"""The records of requests for several answers, put together from those of the answers."""

import numpy as np

from sim.engine.columns import Ints
from sim.engine.records import RequestRecords


def whole_requests(answers: RequestRecords, request: Ints) -> RequestRecords:
    """An entry for each number in `request`, which has that of each answer, from 0 on: its first token is the first of any answer's, its
    last the last, tokens and preemptions are all answers', and what was cached is what the first of them found.
    """
    order = np.argsort(request, kind="stable")
    begins = np.flatnonzero(np.diff(request[order], prepend=-1))
    firsts = order[begins]
    return RequestRecords(
        arrival_s=answers.arrival_s[firsts],
        prompt_tokens=answers.prompt_tokens[firsts],
        output_tokens=np.add.reduceat(answers.output_tokens[order], begins),
        generated_tokens=np.add.reduceat(answers.generated_tokens[order].astype(np.int64), begins),
        first_scheduled_s=np.fmin.reduceat(answers.first_scheduled_s[order], begins),
        first_token_s=np.fmin.reduceat(answers.first_token_s[order], begins),
        finish_s=np.maximum.reduceat(answers.finish_s[order], begins),  # NaN where any answer has no end
        num_preemptions=np.add.reduceat(answers.num_preemptions[order], begins),
        num_cached_tokens=answers.num_cached_tokens[firsts],
        rejected={int(request[row]): reason for row, reason in answers.rejected.items()},
        failed={int(request[row]): reason for row, reason in answers.failed.items()},
    )
