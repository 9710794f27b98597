# Tools for people: dependencies, the demonstration, a cluster in one terminal, figures.
