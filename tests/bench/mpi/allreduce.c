/* MPI's time for what lib/transport does, where mpicc is installed (tests/bench/collective.c makes
 * and runs it). usage: mpirun -np N allreduce BYTES RUNS
 * Prints the median in ms of an all-reduce of float32. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define RUNS_MAX 1000
#define WARM     3

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
    static double ms[RUNS_MAX];
    int rank;
    int count = argc > 1 ? (int)strtol(argv[1], NULL, 10) / (int)sizeof(float) : 0;
    int runs = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    if (MPI_Init(&argc, &argv) || count <= 0 || runs <= 0 || runs > RUNS_MAX)
        return 1;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *from = malloc((size_t)count * sizeof *from), *to = malloc((size_t)count * sizeof *to);
    if (!from || !to)
        return 1;
    for (int i = 0; i < count; i++)
        from[i] = to[i] = (float)(rank + 1);
    for (int run = -WARM; run < runs; run++) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        double begin_s = MPI_Wtime();
        (void)MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (run >= 0)
            ms[run] = (MPI_Wtime() - begin_s) * 1e3;
    }
    qsort(ms, (size_t)runs, sizeof *ms, by_value);
    if (rank == 0)
        (void)printf("%.6f\n", ms[runs / 2]);
    free(from);
    free(to);
    return MPI_Finalize();
}
