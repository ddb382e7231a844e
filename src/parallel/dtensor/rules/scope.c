/* SPDX-License-Identifier: Apache-2.0 */
/* scope: what operations may move, and the counts of what moves. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

/* Finds or makes a scope. The caller has locked the mesh. */
static oari_scope *find_scope(oari_spec_table *table, const char *name,
                              int make)
{
    size_t bytes = strlen(name) + 1;
    oari_scope *s = table->scopes;

    while (s != NULL && strcmp(s->name, name) != 0)
        s = s->next;
    if (s != NULL || !make)
        return s;
    s = oari_alloc(1, sizeof *s + bytes);
    if (s == NULL)
        return NULL;
    memcpy(s->name, name, bytes);
    s->next = table->scopes;
    table->scopes = s;
    return s;
}

/* Returns the current scope, the first if none was set. The caller has locked
 * the mesh. */
static oari_scope *current(oari_spec_table *table)
{
    if (table != NULL && table->scope == NULL)
        table->scope = find_scope(table, "", 1);
    return table != NULL ? table->scope : NULL;
}

oari_scope *oari_scope_now(oar_mesh *mesh)
{
    oari_spec_table *table = mesh->kept; /* there is one, of some spec */
    oari_scope *scope =
        atomic_load_explicit(&table->scope, memory_order_acquire);

    if (scope != NULL)
        return scope;
    pthread_mutex_lock(&mesh->lock);
    scope = current(table);
    pthread_mutex_unlock(&mesh->lock);
    return scope;
}

const char *oar_dtensor_set_scope(oar_mesh *mesh, const char *name)
{
    oari_spec_table *table;
    oari_scope *before, *scope = NULL;

    if (mesh == NULL || name == NULL) {
        oari_fail(OAR_E_ARG, "dtensor_set_scope without %s",
                  mesh == NULL ? "a mesh" : "a name");
        return NULL;
    }
    pthread_mutex_lock(&mesh->lock);
    table = oari_spec_table_of(mesh);
    before = current(table);
    if (before != NULL)
        scope = find_scope(table, name, 1);
    if (scope != NULL)
        atomic_store_explicit(&table->scope, scope, memory_order_release);
    pthread_mutex_unlock(&mesh->lock);
    return scope != NULL ? before->name : NULL;
}

static void add_scope(const oari_scope *s, oar_dtensor_traffic *t)
{
    t->moves += s->moves;
    t->bytes += s->bytes;
    t->implicit_moves += s->implicit_moves;
    t->implicit_bytes += s->implicit_bytes;
    t->backward_moves += s->backward_moves;
    t->backward_bytes += s->backward_bytes;
}

oar_status oar_dtensor_read_traffic(oar_mesh *mesh, const char *name,
                                    oar_dtensor_traffic *traffic)
{
    oar_dtensor_traffic t = { .size = sizeof t };
    oari_spec_table *table;
    int found = name == NULL || *name == '\0';

    if (mesh == NULL)
        return oari_fail(OAR_E_ARG, "dtensor_read_traffic without a mesh");
    pthread_mutex_lock(&mesh->lock);
    table = mesh->kept;
    for (oari_scope *s = table != NULL ? table->scopes : NULL; s != NULL;
         s = s->next)
        if (name == NULL || strcmp(s->name, name) == 0) {
            add_scope(s, &t);
            found = 1;
        }
    pthread_mutex_unlock(&mesh->lock);
    if (!found)
        return oari_fail(OAR_E_NOT_FOUND,
                         "dtensor_read_traffic: no scope is called \"%s\"",
                         name);
    return oari_struct_give(traffic, &t, sizeof t, "traffic");
}

oar_status oar_dtensor_set_limits(oar_mesh *mesh,
                                  const oar_dtensor_limits *limits)
{
    oari_spec_table *table;
    oar_dtensor_limits o;

    if (mesh == NULL)
        return oari_fail(OAR_E_ARG, "dtensor_set_limits without a mesh");
    OARI_TRY(oari_opts_read(&o, sizeof o, limits));
    pthread_mutex_lock(&mesh->lock);
    table = oari_spec_table_of(mesh);
    if (table != NULL) {
        table->strict = o.strict;
        table->most_bytes = o.most_bytes;
    }
    pthread_mutex_unlock(&mesh->lock);
    return table != NULL ? OAR_OK : OAR_E_NOMEM;
}
