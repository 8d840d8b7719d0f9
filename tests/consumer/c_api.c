// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// A C program that links the installed library and asks it what needs no device.

#include <hipmla/hipmla.h>
#include <stdio.h>
#include <string.h>

static char text[256];

static int fail(const char* what) {
  printf("%s: %s\n", what, text);
  return 1;
}

int main(void) {
  static const int32_t qo_indptr[] = {0, 1, 2};
  static const int32_t kv_indptr[] = {0, 2, 66};
  static const int32_t kv_last_page_lens[] = {7, 64};
  hipmla_device_info_t device;
  hipmla_shape_t shape;
  hipmla_options_t options;
  hipmla_lengths_t lengths;
  hipmla_tensors_t tensors;
  hipmla_plan_t* plan = NULL;
  size_t most_bytes = 0;

  printf("hipmla %s (%s)\n", hipmla_version(), hipmla_platform());

  hipmla_device_info_init(&device, sizeof(device));
  device.arch = HIPMLA_GFX942;
  device.num_compute_units = 304;
  device.lds_bytes = 64 * 1024;

  hipmla_shape_init(&shape, sizeof(shape));
  shape.num_heads = 16;
  shape.kv_type = HIPMLA_FP8_E4M3FNUZ;
  shape.page_size = 64;
  shape.batch_size = 2;
  shape.total_q = 2;

  hipmla_options_init(&options, sizeof(options));
  options.sliding_window = 1000;

  if (hipmla_check_support(&shape, &options, &device, text, sizeof(text)) != HIPMLA_OK)
    return fail("check_support");
  if (hipmla_workspace_size(&shape, &options, &device, &most_bytes, text, sizeof(text)))
    return fail("workspace_size");

  hipmla_lengths_init(&lengths, sizeof(lengths));
  lengths.batch_size = 2;
  lengths.qo_indptr = qo_indptr;
  lengths.kv_indptr = kv_indptr;
  lengths.kv_last_page_lens = kv_last_page_lens;
  if (hipmla_plan_create(&shape, &options, &device, &lengths, &plan, text, sizeof(text)))
    return fail("plan_create");
  if (hipmla_plan_workspace_bytes(plan) > most_bytes) return fail("workspace");
  if (hipmla_plan_description(plan, text, sizeof(text))) return fail("description");
  printf("%s\n", text);

  // Refused, with the reason.
  hipmla_tensors_init(&tensors, sizeof(tensors));
  tensors.softmax_scale = 0.1f;
  if (hipmla_decode(plan, &tensors, NULL, 0, NULL, text, sizeof(text)) !=
      HIPMLA_WORKSPACE_TOO_SMALL)
    return fail("decode");
  hipmla_plan_destroy(plan);
  shape.num_heads = 513;
  if (hipmla_check_support(&shape, NULL, &device, text, sizeof(text)) != HIPMLA_UNSUPPORTED)
    return fail("513 heads");
  if (strstr(text, "513") == NULL) return fail("text");
  printf("%s\n", text);
  return 0;
}
