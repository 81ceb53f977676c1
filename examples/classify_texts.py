"""Classify texts: a tokeniser learned from them, and a network of your own that takes tokens and their mask."""

from torch import nn

import sparkdl


class SumOfTokens(nn.Module):
    def __init__(self, vocabularies, num_classes):
        super().__init__()
        self.table = nn.Embedding(vocabularies["words"], 16)
        self.out = nn.Linear(16, num_classes)

    def forward(self, words, words_mask):
        return self.out((self.table(words) * words_mask.unsqueeze(-1)).sum(dim=1))


spark = sparkdl.get_session()
rows = [(f"{'good' if number % 2 else 'bad'} film, seen {number} times", number % 2) for number in range(400)]
words = {"column": "text", "kind": "tokens", "vocabulary": 300, "max_length": 64, "on_long_rows": "cut"}
preparation = sparkdl.Prepare(output="output/reviews", inputs={"words": words})
dataset = sparkdl.prepare(spark.createDataFrame(rows, "text string, label int"), preparation)
trained = sparkdl.train(dataset, sparkdl.Train(model=SumOfTokens, epochs=5, batch_size=16, learning_rate=0.02))
sparkdl.score(spark.createDataFrame([("a good one",), ("a bad one",)], ["text"]), trained).show()
