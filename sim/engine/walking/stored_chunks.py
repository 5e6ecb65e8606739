"""How far a request has come with a store."""


class StoredChunks:
    """The keys of its chunks as far as they are known, how many leading ones the store was offered or has given, and when it answers (-1: not asked).

    What is stored begins behind `num_begun` tokens that the GPU had or that were loaded; as it was last admitted, `num_prefilled` tokens were known.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.num_stored = 0
        self.answer_s = -1.0
        self.num_begun = 0
        self.num_prefilled = 0
