/* Prints what the CPU probe reports: for an emulated CPU, which this process can't ask itself. */
#include <stdint.h>
#include <stdio.h>

int32_t ec_probe(char* buffer, int32_t capacity);

int main(void) {
  char text[4096];
  const int32_t length = ec_probe(text, sizeof text);
  if (length < 0 || length > (int32_t)sizeof text) return 1;
  printf("%.*s\n", (int)length, text);
  return 0;
}
