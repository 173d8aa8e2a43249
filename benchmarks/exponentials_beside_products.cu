// Do the products and the exponentials of headdim 64 get in each other's way when nothing makes them wait?
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Isubmissions/cuda_hopper/kernels \
//        -o /tmp/beside benchmarks/exponentials_beside_products.cu && /tmp/beside          # seconds, one H100 or H200
//
// One CTA an SM, up to two warpgroups that only multiply and up to two that only do a softmax's arithmetic. One
// iteration is two trips of headdim 64 in each of them: 8 products S[64, 64] += Q K^T from shared memory and 8
// O[64, 64] += P V with P in registers, 512 tensor clocks; or 64 FFMA, 64 MUFU.EX2, 68 FADD and 32 F2FP a thread. Two
// and two are what four warpgroups of cuda_hopper do in one trip each, less loads, votes and address arithmetic.
// Printed: clocks an iteration. Then, beside the same products, one kind of instruction after the other, half as many
// iterations, so that products run all the while.
#include <cstdio>

#include "sm90.cuh"

constexpr int ITERATIONS = 4000, SMEM_BYTES = 65536, THREADS = 512;

__device__ float multiply(uint32_t base, int wg) {
  float S[32], O[32]; uint32_t P[16];
  for (int i = 0; i < 32; i++) S[i] = O[i] = 0.f;
  for (int i = 0; i < 16; i++) P[i] = 0x2c002c00u + (threadIdx.x * 77 + i) % 1024;   // halves of about 2^-4
  const uint32_t q = desc_low(base + wg * 8192, 16), k = desc_low(base + 16384, 16), v = desc_low(base + 32768, 8192);
#pragma unroll 1
  for (int n = 0; n < ITERATIONS; n++) {
    wgmma_fence();
#pragma unroll
    for (int trip = 0; trip < 2; trip++) {
#pragma unroll
      for (int i = 0; i < 4; i++) QK<64>::mma(S, q + i * 2, k + trip * 512 + i * 2, 1);
#pragma unroll
      for (int i = 0; i < 4; i++) PV<64>::mma(O, P + 4 * i, v + trip * 512 + i * 128);
    }
    wgmma_commit(); wgmma_wait<0>();
  }
  touch(S); touch(O);
  float x = 0.f;
  for (int i = 0; i < 32; i++) x += S[i] + O[i];
  return x;
}

__device__ float exponentials() {
  float s[32], l = 0.f, m0 = 1.f + threadIdx.x * 1e-6f, m1 = 1.1f; uint32_t packed = 0;
  for (int i = 0; i < 32; i++) s[i] = i * 0.01f + threadIdx.x * 1e-5f;
#pragma unroll 1
  for (int n = 0; n < 2 * ITERATIONS; n++) {
    float p[32], s0 = 0.f, s1 = 0.f;
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = exp2_approx(fmaf(s[i], 0.01f, (i & 2) ? -m1 : -m0));
#pragma unroll
    for (int i = 0; i < 32; i += 4) { s0 += p[i] + p[i + 1]; s1 += p[i + 2] + p[i + 3]; }
#pragma unroll
    for (int i = 0; i < 32; i += 4) packed ^= pack_two(p[i], p[i + 1]) ^ pack_two(p[i + 2], p[i + 3]);
    l += s0 + s1; m0 += 1e-3f; m1 += 1e-3f;                 // the arguments change, so nothing leaves the loop
  }
  return l + packed;
}

enum Kind { SOFTMAX, MUFU, FFMA, FADD, HADD2, SUM_BY_FADD, SUM_BY_HADD2 };
constexpr const char* NAMES[] = {"", "128 MUFU", "256 FFMA", "256 FADD", "256 HADD2", "64 FFMA, 64 MUFU, 72 FADD",
                                 "64 FFMA, 64 MUFU, 32 F2FP, 32 HADD2"};

// What a thread does in an iteration; what nobody reads, ptxas removes.
template <Kind KIND> __device__ float arithmetic() {
  float s[32], m0 = 1.f + threadIdx.x * 1e-6f, m1 = 1.1f, l = 0.f; uint32_t h[16];
  for (int i = 0; i < 32; i++) s[i] = i * 0.01f + threadIdx.x * 1e-5f;
  for (int i = 0; i < 16; i++) h[i] = threadIdx.x + i;
#pragma unroll 1
  for (int n = 0; n < ITERATIONS; n++) {                    // two trips an iteration, half the iterations
    if (KIND == SUM_BY_FADD || KIND == SUM_BY_HADD2) {
      float p[32], s0 = 0.f, s1 = 0.f;
#pragma unroll
      for (int i = 0; i < 32; i++)
        asm volatile("{.reg .f32 t; fma.rn.ftz.f32 t,%1,0f3C23D70A,%2; ex2.approx.ftz.f32 %0,t;}"
                     : "=f"(p[i]) : "f"(s[i]), "f"((i & 2) ? m1 : m0));
      if (KIND == SUM_BY_FADD) {
#pragma unroll
        for (int i = 0; i < 32; i += 4) { s0 += p[i] + p[i + 1]; s1 += p[i + 2] + p[i + 3]; }
        l += s0 + s1;
      } else {
#pragma unroll
        for (int i = 0; i < 16; i++)
          asm volatile("add.rn.f16x2 %0,%0,%1;" : "+r"(h[i & 3]) : "r"(pack_two(p[2 * i + 1], p[2 * i])));
      }
      m0 += 1e-3f; m1 += 1e-3f;
    }
#pragma unroll
    for (int i = 0; i < (KIND == MUFU ? 64 : KIND < SUM_BY_FADD ? 128 : 0); i++) {
      if (KIND == MUFU) asm volatile("ex2.approx.ftz.f32 %0,%0;" : "+f"(s[i & 31]));
      if (KIND == FFMA) asm volatile("fma.rn.ftz.f32 %0,%0,0f3F7FFFF0,%1;" : "+f"(s[i & 31]) : "f"(m0));
      if (KIND == FADD) asm volatile("add.rn.ftz.f32 %0,%0,%1;" : "+f"(s[i & 31]) : "f"(s[(i + 7) & 31]));
      if (KIND == HADD2) asm volatile("add.rn.f16x2 %0,%0,%1;" : "+r"(h[i & 15]) : "r"(h[(i + 3) & 15]));
    }
  }
  for (int i = 0; i < 32; i++) l += s[i];
  for (int i = 0; i < 16; i++) l += h[i];
  return l;
}

template <Kind KIND = SOFTMAX>
__global__ void __launch_bounds__(THREADS, 1) beside(int multiplying, int softmax, uint32_t* clocks, float* sink) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);
  for (int i = threadIdx.x; i < SMEM_BYTES / 4; i += THREADS)
    reinterpret_cast<uint32_t*>(smem)[i] = 0x3c003800u + (i * 2654435761u & 0x03ff03ffu);   // halves from 0.5 to 2
  proxy_fence(); __syncthreads();
  uint32_t begin, end; float x = 0.f;
  asm volatile("mov.u32 %0,%%clock;" : "=r"(begin)::"memory");
  if (wg < 2) { if (wg < multiplying) x = multiply(smem_u32(smem), wg); }
  else if (wg - 2 < softmax) x = KIND == SOFTMAX ? exponentials() : arithmetic<KIND>();
  asm volatile("mov.u32 %0,%%clock;" : "=r"(end)::"memory");
  sink[blockIdx.x * THREADS + threadIdx.x] = x;
  if ((threadIdx.x & 127) == 0) clocks[blockIdx.x * 4 + wg] = end - begin;
}

template <Kind KIND> void one_kind(int sms, uint32_t* clocks, float* sink) {
  cudaFuncSetAttribute(beside<KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
  printf("%s: ", NAMES[KIND]);
  for (int multiplying = 0; multiplying <= 2; multiplying += 2) {
    for (int warm = 0; warm < 2; warm++) beside<KIND><<<sms, THREADS, SMEM_BYTES>>>(multiplying, 2, clocks, sink);
    if (const cudaError_t failure = cudaDeviceSynchronize()) { puts(cudaGetErrorString(failure)); return; }
    uint32_t found[4]; cudaMemcpy(found, clocks, sizeof found, cudaMemcpyDeviceToHost);
    const double arithmetic = 2. * found[2] / ITERATIONS, products = found[0] / (double)ITERATIONS;
    if (multiplying) printf("; beside products %.0f, which take %.0f\n", arithmetic, products);
    else printf("alone %.0f", arithmetic);
  }
}

int main() {
  int sms; cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  uint32_t* clocks; float* sink; cudaMalloc(&clocks, sms * 16); cudaMalloc(&sink, sms * THREADS * 4);
  cudaFuncSetAttribute(beside<>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
  for (int multiplying = 0; multiplying <= 2; multiplying++) {
    for (int softmax = 0; softmax <= 2; softmax++) {
      for (int warm = 0; warm < 2; warm++) beside<><<<sms, THREADS, SMEM_BYTES>>>(multiplying, softmax, clocks, sink);
      if (const cudaError_t failure = cudaDeviceSynchronize()) { puts(cudaGetErrorString(failure)); return 1; }
      uint32_t found[4]; cudaMemcpy(found, clocks, sizeof found, cudaMemcpyDeviceToHost);
      printf("multiplying %d, softmax %d: clocks an iteration %4.0f %4.0f | %4.0f %4.0f\n", multiplying, softmax,
             found[0] / (double)ITERATIONS, found[1] / (double)ITERATIONS, found[2] / (double)ITERATIONS,
             found[3] / (double)ITERATIONS);
    }
  }
  one_kind<MUFU>(sms, clocks, sink); one_kind<FFMA>(sms, clocks, sink); one_kind<FADD>(sms, clocks, sink);
  one_kind<HADD2>(sms, clocks, sink);
  one_kind<SUM_BY_FADD>(sms, clocks, sink); one_kind<SUM_BY_HADD2>(sms, clocks, sink);
}
