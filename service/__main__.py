"""`python -m service` is the command `perceptron`."""

from service.cli.app import main

if __name__ == "__main__":
    main()
