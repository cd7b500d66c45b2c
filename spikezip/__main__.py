"""`python -m spikezip` is the command `spikezip`; `accelerate launch -m spikezip train …` runs it in many processes."""

from spikezip.cli import main

if __name__ == "__main__":
    main()
