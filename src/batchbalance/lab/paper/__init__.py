"""The figures and tables of the paper by name: experiments (learning curves) and analyses."""
