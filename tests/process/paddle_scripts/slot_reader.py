"""Lines `label<TAB>number<TAB>word word ...` into slots, as a pipe command."""

import sys

import paddle.fluid.incubate.data_generator as dg


class SlotReader(dg.MultiSlotDataGenerator):
    def set_height(self, height):
        self.height = height

    def fields(self, line):
        label, number, words = line.rstrip("\n").split("\t")
        ids = [int(word[1:]) % self.height for word in words.split()]
        return [float(number)], ids, [int(label)]

    def generate_sample(self, line):
        def one():
            yield zip(["number", "words", "label"], self.fields(line))

        return one

    def samples(self, path):
        def reader():
            with open(path) as file:
                for line in file:
                    yield self.fields(line)

        return reader


if __name__ == "__main__":
    slots = SlotReader()
    slots.set_height(int(sys.argv[1]))
    slots.run_from_stdin()
