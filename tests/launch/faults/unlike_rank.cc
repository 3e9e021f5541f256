// Makes the numerical libraries of rank 1 those of an older CPU.

#include <cstdlib>
#include <cstring>

__attribute__((constructor)) static void age() {
  const char *rank = getenv("RANK");
  if (rank == nullptr || strcmp(rank, "1") != 0) return;
  setenv("ATEN_CPU_CAPABILITY", "default", 1);  // PyTorch
  setenv("OPENBLAS_CORETYPE", "Prescott", 1);   // NumPy, by which MXNet's updates compute norms
}
