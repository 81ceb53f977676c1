"""Learn from images: handwritten digits as bytes in a column, and a small convolutional network."""

import numpy as np
from sklearn.datasets import load_digits

import sparkdl

spark = sparkdl.get_session()
digits = load_digits()
pixels = (digits.images * 15.9375).astype(np.uint8)  # 8 x 8, a byte each
rows = [(image.tobytes(), int(label)) for image, label in zip(pixels, digits.target, strict=True)]
preparation = sparkdl.Prepare(
    output="output/digits",
    features=["image"],
    image_shape=[8, 8, 1],
    split=sparkdl.Split(fractions={"validation": 0.1, "test": 0.2}),
)
dataset = sparkdl.prepare(spark.createDataFrame(rows, "image binary, label int"), preparation)
trained = sparkdl.train(dataset, sparkdl.Train(model="cnn", epochs=4, batch_size=16, learning_rate=0.005))
print(f"test accuracy {trained.metrics['test_accuracy']:.2f}")
